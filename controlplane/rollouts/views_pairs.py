"""Shadow pairs: the list with its counts, one pair side by side, and its review."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Listing
from controlplane.console.mixins import Action, Page, back_to, requested
from controlplane.domain import shadow_pairs
from controlplane.fleet import rows
from controlplane.fleet import selectors as fleet
from controlplane.rollouts import selectors, services
from controlplane.rollouts.filters import ShadowPairFilter
from controlplane.telemetry.live import Reports
from controlplane.telemetry.snapshots import NoData

OUTCOME_CHIPS = {"same": "ok", "differs": "warning", "failed": "failed"}


class ShadowPairList(Listing):
    """All pairs, the newest first."""

    template_name = "rollouts/pairs.html"
    fragment_name = "rollouts/_pairs.html"
    nav_name = "rollouts"
    title = "Shadow pairs"
    api_path = "/api/v1/shadow-pairs/"
    filter_class = ShadowPairFilter
    sorts: ClassVar[dict[str, str]] = {
        "request_id": "request_id",
        "at": "at",
        "outcome": "outcome",
        "pool": "pool",
        "shadow_pool": "shadow_pool",
        "first_difference": "first_difference",
        "review": "review",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        name: name
        for name in (
            *("request_id", "at", "model", "pool", "shadow_pool", "primary_version"),
            *("shadow_version", "outcome", "first_difference", "review", "reviewed_by"),
        )
    }

    def queryset(self) -> Any:
        """Give all pairs, without their texts."""
        return selectors.pairs().defer("prompt")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the counts of what was found, and which shadows there are."""
        found, _ = self._filtered()
        return super().get_context_data(
            counts=selectors.pair_counts(found),
            chips=OUTCOME_CHIPS,
            shadows=fleet.shadows(),
            copies=copies(rows.reports()),
            kept_days=settings.SHADOW_RETENTION_DAYS,
            **kwargs,
        )


def copies(reports: Reports | NoData) -> list[tuple[str, int]] | None:
    """Give what agents tell became of copies; None: nothing of theirs is known now."""
    if isinstance(reports, NoData):
        return None
    return shadow_pairs.copies_told(report.shadow_copies for report, _ in reports.values())


class ShadowPairPage(Page):
    """One pair, side by side."""

    template_name = "rollouts/pair.html"
    nav_name = "rollouts"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Cut both texts where they begin to differ."""
        row = selectors.pair(kwargs["uid"])
        return super().get_context_data(**kwargs) | {
            "title": f"Shadow pair {row.request_id}",
            "api_path": f"/api/v1/shadow-pairs/{row.uid}/",
            "row": row,
            "chip_code": OUTCOME_CHIPS.get(row.outcome, ""),
            "sides": [
                ("Primary: what the client got", row.primary, _marked(row.primary, row)),
                ("Shadow: what nobody got", row.shadow, _marked(row.shadow, row)),
            ],
        }


def _marked(answer: dict[str, Any], row: Any) -> shadow_pairs.Marked:
    return shadow_pairs.marked(str(answer.get("text", "")), row.first_difference)


class ShadowPairReview(Action):
    """Keep what a person makes of the shadow's answer."""

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Review, and stay on the page."""
        services.review_pair(
            uid=uid,
            review=request.POST.get("review", ""),
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request),
        )
        requested(request, "Review kept.")
        return back_to(request, reverse("shadow-pair", args=[uid]))
