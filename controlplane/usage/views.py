"""Requests: those that were kept, and what happened to one of them."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.console.listing import Listing
from controlplane.console.mixins import Page
from controlplane.domain import requests
from controlplane.usage import selectors
from controlplane.usage.filters import RequestFilter
from controlplane.usage.models import RequestRecord

OTHERS_SHOWN = 10


class RequestList(Listing):
    """Kept requests, failed ones first."""

    template_name = "usage/requests.html"
    fragment_name = "usage/_requests.html"
    nav_name = "requests"
    title = "Requests"
    api_path = "/api/v1/requests/"
    filter_class = RequestFilter
    sorts: ClassVar[dict[str, str]] = {
        "request_id": "request_id",
        "received_at": "received_at",
        "status": "status",
        "pool": "pool",
        "tenant": "tenant",
        "replica": "replica",
        "queue_wait_s": "queue_wait_s",
        "ttft_s": "ttft_s",
        "e2e_s": "e2e_s",
        "prompt_tokens": "prompt_tokens",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        name: name
        for name in (
            "request_id",
            "received_at",
            "status",
            "error",
            "tenant",
            "pool",
            "version",
            "model",
            "replica",
            "attempts",
            "queue_wait_s",
            "ttft_s",
            "e2e_s",
            "prompt_tokens",
            "output_tokens",
            "trace_id",
        )
    }

    def queryset(self) -> Any:
        """Give all kept requests."""
        return selectors.requests()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Say beside the list what is kept."""
        return super().get_context_data(what_is_kept=selectors.what_is_kept(), **kwargs)


class RequestPage(Page):
    """What happened to this one: stages, decision, attempts, tokens."""

    template_name = "usage/request.html"
    nav_name = "requests"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the request, or say that and why it was not kept."""
        found = list(selectors.named(kwargs["request_id"])[:OTHERS_SHOWN])
        row = next(
            (r for r in found if r.uid == request.GET.get("uid")), found[0] if found else None
        )
        if row is None:
            return self._missing(request, kwargs["request_id"])
        return super().get(request, *args, row=row, others=[r for r in found if r is not row])

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Read the life and lay its stages out."""
        row: RequestRecord = kwargs["row"]
        life = selectors.life_of(row)
        lines = requests.stage_lines(life)
        return super().get_context_data(**kwargs) | {
            "title": row.request_id,
            "api_path": f"/api/v1/requests/{row.request_id}/",
            "life": life,
            "lines": lines,
            "line_units": requests.LINE_UNITS,
            "over": [line for line in lines if line.is_over],
            "budget_note": requests.BUDGET_NOTE,
        }

    def _missing(self, request: HttpRequest, request_id: str) -> HttpResponse:
        context = {
            "title": request_id,
            "nav_name": self.nav_name,
            "request_id": request_id,
            "what_is_kept": selectors.what_is_kept(),
        }
        return render(request, "usage/request_missing.html", context, status=404)
