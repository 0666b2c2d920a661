"""Audit: who changed what, and why. New events are announced, never put in under the cursor."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.audit import selectors
from controlplane.audit.filters import AuditFilter
from controlplane.audit.models import AuditEvent
from controlplane.console.listing import Listing
from controlplane.console.mixins import RoleRequired


class AuditList(Listing):
    """All events, newest first."""

    template_name = "audit/audit.html"
    nav_name = "audit"
    title = "Audit"
    api_path = "/api/v1/audit-events/"
    filter_class = AuditFilter
    sorts: ClassVar[dict[str, str]] = {
        "at": "at",
        "actor": "actor",
        "verb": "verb",
        "target": "target",
        "fleet_revision": "fleet_revision",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        "at": "at",
        "actor": "actor",
        "actor_kind": "actor_kind",
        "verb": "verb",
        "target_kind": "target_kind",
        "target": "target",
        "reason": "reason",
        "fleet_revision": "fleet_revision",
    }

    def queryset(self) -> Any:
        """Give all events."""
        return selectors.events()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Remember the newest event shown, so that later ones can be counted."""
        newest = AuditEvent.objects.values_list("pk", flat=True).first() or 0
        return super().get_context_data(newest=newest, **kwargs)


class NewEvents(RoleRequired):
    """How many events came since the page was drawn."""

    def get(self, request: HttpRequest, newest: int) -> HttpResponse:
        """Answer with a button when there are some."""
        count = AuditEvent.objects.filter(pk__gt=newest).count()
        return render(request, "audit/_new.html", {"count": count})
