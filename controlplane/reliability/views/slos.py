"""SLOs: which promise is at risk, how much budget is left, and time that does not count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.asking import Asking
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Sorting
from controlplane.console.mixins import Action, Page, back_to, requested
from controlplane.fleet import selectors as fleet
from controlplane.reliability import selectors, services
from controlplane.reliability.forms import SloForm, WindowForm

WINDOWS_SHOWN = timedelta(days=31)


SORTS = {
    "pool": "pool",
    "spent_ratio": "budget.spent_ratio",
    "left_minutes": "budget.left_minutes",
    "burn_rate": "burn_rate",
    "review_on": "review_on",
}


class SloPage(Page):
    """All pools' promises, the least budget left first."""

    template_name = "reliability/slos.html"
    fragment_name = "reliability/_slos.html"
    nav_name = "slos"
    title = "SLOs"
    api_path = "/api/v1/slos/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather promises and maintenance windows."""
        now = timezone.now()
        found = selectors.promises()
        sorting = Sorting.of(self.request.GET, SORTS)
        return super().get_context_data(
            sorting=sorting,
            promises=sorting.rows(found, SORTS),
            booked_until=found[0].booked_until if found else None,
            windows=[
                (w, "over" if w.ends_at <= now else "open" if w.starts_at <= now else "ahead")
                for w in selectors.windows(since=now - WINDOWS_SHOWN)[:50]
            ],
            **kwargs,
        )


class SloEdit(Asking):
    """Change what a pool promises."""

    nav_name = "slos"
    explained = (
        "Alerts and the error budget go by it from now on. Minutes that are booked stay as they"
        " were judged then; the size of the month's budget changes at once."
    )
    button = "Change promises"

    def title_for(self, **address: Any) -> str:
        """Name the pool."""
        return f"Change what pool {address['slug']} promises"

    def form(self, data: Any, **address: Any) -> SloForm:
        """Give the form as the pool is now."""
        promise = selectors.promise(address["slug"])
        return SloForm(data, initial=SloForm.initial_of(promise))

    def change(self, form: SloForm, who: dict[str, Any], **address: Any) -> str:
        """Change it."""
        services.set_slo(pool=address["slug"], **form.changes(), **who)
        return f"Promises of pool {address['slug']} changed."

    def back(self, **address: Any) -> str:
        """Go to all promises."""
        return reverse("slos")


class WindowOpen(Asking):
    """Declare time that does not count."""

    nav_name = "slos"
    title = "Declare maintenance"
    explained = (
        "This time spends no error budget. It may have begun up to 47 hours ago: minutes that are"
        " booked are booked anew. Alerts are still told; a silence keeps them quiet."
    )
    button = "Declare maintenance"

    def form(self, data: Any, **address: Any) -> WindowForm:
        """Give the form."""
        pool = {"pool": self.request.GET.get("pool", "")}
        return WindowForm(data, pools=fleet.pool_names(), initial=pool)

    def change(self, form: WindowForm, who: dict[str, Any], **address: Any) -> str:
        """Declare it."""
        services.open_window(**form.window(), **who)
        return "Maintenance declared."

    def back(self, **address: Any) -> str:
        """Go to all promises."""
        return reverse("slos")


class WindowClose(Action):
    """End a window early."""

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Close it and go back."""
        actor = Actor(request.user.get_username())
        services.close_window(pk=pk, actor=actor, reason=actions.reason(request))
        requested(request, "Maintenance ended: from now on time counts again.")
        return back_to(request, reverse("slos"))
