"""Rollouts: the list, one rollout, the form that starts one, and what people do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Listing
from controlplane.console.mixins import Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain import analysis, rollouts
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.domain.rollouts import Phase
from controlplane.rollouts import selectors, services
from controlplane.rollouts.filters import RolloutFilter
from controlplane.rollouts.forms import StartForm
from controlplane.rollouts.models import Rollout, RolloutStep
from controlplane.routing import selectors as routing

EVENTS_SHOWN = 50
CHIPS = {
    Phase.PROGRESSING: "pending",
    Phase.PAUSED: "paused",
    Phase.HEALTHY: "healthy",
    Phase.DEGRADED: "degraded",
}
VERDICT_CHIPS = {"Successful": "ok", "Failed": "failed", "Inconclusive": "warning"}


class RolloutList(Listing):
    """All rollouts, the newest first."""

    template_name = "rollouts/rollouts.html"
    fragment_name = "rollouts/_rollouts.html"
    nav_name = "rollouts"
    title = "Rollouts"
    api_path = "/api/v1/rollouts/"
    filter_class = RolloutFilter
    sorts: ClassVar[dict[str, str]] = {
        "id": "id",
        "phase": "phase",
        "model": "model",
        "stable_pool": "stable_pool",
        "canary_pool": "canary_pool",
        "started_at": "started_at",
        "started_by": "started_by",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        name: name
        for name in (
            *("id", "model", "stable_pool", "canary_pool", "phase", "percent"),
            *("reason", "started_at", "started_by", "finished_at"),
        )
    }

    def queryset(self) -> Any:
        """Give all rollouts."""
        return selectors.all_rollouts()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add how phases look."""
        return super().get_context_data(chips=CHIPS, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder, done, now or to come."""

    percent: float
    state: str  # done, now, next
    step: RolloutStep | None
    left_s: float | None = None  # of the bake time


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """What a person may do; `disabled` says why not now."""

    name: str
    label: str
    disabled: str = ""
    danger: bool = False


class RolloutPage(Page):
    """One rollout: ladder, canary beside stable, what happened, what can be done."""

    template_name = "rollouts/rollout.html"
    fragment_name = "rollouts/_rollout.html"
    nav_name = "rollouts"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the steps, the newest verdict, the weights as they are, and the trail."""
        row = selectors.rollout(kwargs["number"])
        step = next((s for s in row.steps.all() if s.index == row.current), None)
        expected, found = selectors.expected_weights(row), selectors.found_weights(row)
        trail = AuditEvent.objects.filter(target_kind="rollout", target=str(row.pk))
        return super().get_context_data(**kwargs) | {
            "title": f"Rollout {row.pk}",
            "api_path": f"/api/v1/rollouts/{row.pk}/",
            "row": row,
            "chip_code": CHIPS[Phase(row.phase)],
            "ladder": ladder(row),
            "is_aborted": step is not None and step.outcome == "aborted",
            "step_reasons": {s.reason for s in row.steps.all() if s.reason},
            "analysis": selectors.newest_analysis(step) if step else None,
            "labels": analysis.LABELS,
            "verdict_chips": VERDICT_CHIPS,
            "drift": rollouts.drift(expected, found) if row.is_running else "",
            "weights": found,
            "observed": routing.observed(step.revision) if step and row.is_running else None,
            "events": trail.order_by("-id")[:EVENTS_SHOWN],
            "buttons": buttons(row),
        }


def ladder(row: Rollout) -> list[Rung]:
    """Give all steps, those to come too."""
    steps = {step.index: step for step in row.steps.all()}
    found = []
    for index, percent in enumerate(row.percents):
        is_now = index == row.current and row.is_running
        state = "now" if is_now else "done" if index in steps else "next"
        left_s = max(0.0, row.bake_s - row.baked_s) if is_now else None
        found.append(Rung(percent=percent, state=state, step=steps.get(index), left_s=left_s))
    return found


def buttons(row: Rollout) -> list[Button]:
    """Give what can be done with a rollout, as everywhere: what is safe first, danger last."""
    if row.phase == Phase.HEALTHY:
        return [Button(name="roll-back", label="Roll back", danger=True)]
    if row.phase == Phase.DEGRADED:
        return []
    is_paused = row.phase == Phase.PAUSED
    is_last = row.current + 1 >= len(row.percents)
    hold = (
        Button(name="resume", label="Resume") if is_paused else Button(name="pause", label="Pause")
    )
    return [
        hold,
        Button(name="promote", label="Finish now" if is_last else "Promote one step"),
        Button(name="abort", label="Abort", danger=True),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One action on a rollout: the service, its words, and what it does to the weights."""

    service: Callable[..., Rollout]
    verb: str
    effect: str
    done: str
    is_risky: bool = False


DEEDS: dict[str, Deed] = {
    "pause": Deed(
        service=services.pause_rollout,
        verb="Pause rollout",
        effect="The weights stay as they are. A failing analysis still takes the canary back.",
        done="Rollout paused.",
    ),
    "resume": Deed(
        service=services.resume_rollout,
        verb="Resume rollout",
        effect="It goes on by itself when the step has passed.",
        done="Rollout resumed.",
    ),
    "promote": Deed(
        service=services.promote_rollout,
        verb="Promote rollout",
        effect="The next step begins at once, whatever the analysis of this one says.",
        done="Rollout promoted.",
    ),
    "abort": Deed(
        service=services.abort_rollout,
        verb="Abort rollout",
        effect="Stable gets every new session at once. Running streams end where they are.",
        done="Rollout aborted.",
        is_risky=True,
    ),
    "roll-back": Deed(
        service=services.roll_back,
        verb="Roll back",
        effect="A new rollout moves everything back to the version before, in one step.",
        done="Rollback started.",
        is_risky=True,
    ),
}


class RolloutAction(RoleRequired):
    """Confirm with a reason, then act; the form carries the state it was made from."""

    required_role = "operator"

    def get(self, request: HttpRequest, number: int, deed: str) -> HttpResponse:
        """State the effect on the weights and ask for the reason."""
        row, asked = selectors.rollout(number), _deed(deed)
        context = {
            "title": asked.verb,
            "nav_name": "rollouts",
            "layout": "dialog.html" if in_dialog(request) else "base.html",
            "row": row,
            "deed": deed,
            "asked": asked,
            "before": selectors.found_weights(row),
            "after": weights_after(row, deed),
            "frozen": frozen(row, deed),
        }
        return render(request, "rollouts/confirm.html", context)

    def post(self, request: HttpRequest, number: int, deed: str) -> HttpResponse:
        """Act, and follow the weights to the agents."""
        asked = _deed(deed)
        extra = {"override_budget": True} if request.POST.get("override_budget") else {}
        made = asked.service(
            **(extra if deed == "promote" else {}),
            number=number,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
            expected_version=actions.expected_version(request),
        )
        requested(request, asked.done, revision=fleet_revision())
        return back_to(request, reverse("rollout", args=[made.pk]))


def frozen(row: Rollout, deed: str) -> str:
    """Say which spent error budget an action would have to override."""
    if deed != "promote" or row.current + 1 >= len(row.percents):
        return ""
    return selectors.frozen_words(row.stable_pool, row.canary_pool)


def weights_after(row: Rollout, deed: str) -> dict[str, float]:
    """Give the two pools' weights after an action."""
    percent = {"abort": 0.0, "roll-back": 0.0, "promote": 100.0}.get(deed, row.percent)
    if deed == "promote" and row.current + 1 < len(row.percents):
        percent = float(row.percents[row.current + 1])
    stable, canary = rollouts.weights(row.share, percent)
    return {row.stable_pool: stable, row.canary_pool: canary}


def _deed(name: str) -> Deed:
    if name not in DEEDS:
        raise NotFound(f"There is no action {name!r} of a rollout.")
    return DEEDS[name]


class RolloutStart(RoleRequired):
    """The form that starts a rollout."""

    required_role = "operator"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the form; `?stable=` and `?canary=` fill it in."""
        given = {
            "stable_pool": request.GET.get("stable", ""),
            "canary_pool": request.GET.get("canary", ""),
        }
        return self._form(request, StartForm(initial=given))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Start it, or say in the form why it cannot start."""
        form = StartForm(request.POST)
        if not form.is_valid():
            return self._form(request, form, status=400)
        try:
            row = services.start_rollout(
                actor=Actor(request.user.get_username()),
                reason=form.cleaned_data["reason"],
                **form.rules(),
            )
        except ProblemError as problem:
            field = problem.field if problem.field in form.fields else None
            form.add_error(field, problem.message)
            return self._form(request, form, status=problem.status)
        requested(request, f"Rollout {row.pk} started.", revision=fleet_revision())
        return back_to(request, reverse("rollout", args=[row.pk]))

    def _form(self, request: HttpRequest, form: StartForm, status: int = 200) -> HttpResponse:
        context = {
            "title": "Start a rollout",
            "nav_name": "rollouts",
            "form": form,
            "api_path": "/api/v1/rollouts/",
        }
        return render(request, "rollouts/start.html", context, status=status)
