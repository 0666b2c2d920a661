"""The planner's page: inputs, the calculation step by step, and where every input is from."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone

from controlplane.console.mixins import Page
from controlplane.domain.errors import ProblemError
from controlplane.domain.planning_inputs import BY_NAME, DEFAULTS, Inputs
from controlplane.fleet.models import Pool
from controlplane.planning import selectors, what_if
from controlplane.planning.forms import PlannerForm
from controlplane.planning.selectors import Planned

HEADLINES: Final = ("replicas", "gpus", "usd_per_month", "concurrency")


class PlannerPage(Page):
    """A calculator whose every view is a link: nothing is stored, nothing changes."""

    template_name = "planning/planning.html"
    nav_name = "planning"
    title = "Planner"
    api_path = "/api/v1/plan/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Plan from the address's inputs, if there are any."""
        pools = list(Pool.objects.values_list("slug", flat=True))
        form = PlannerForm(self.request.GET or None, pools=pools)
        found = _planned(form) if form.is_bound and form.is_valid() else None
        form.show_known(found.plan.inputs if found else DEFAULTS)
        context = super().get_context_data(form=form, **kwargs)
        return context | (_shown(found) | _what_if(form, found) if found else {})


def _planned(form: PlannerForm) -> Planned | None:
    pool = form.cleaned_data["pool"] or None
    try:
        return selectors.planned(entered=form.entered(), pool=pool, now=timezone.now())
    except ProblemError as problem:
        form.show_problem(problem)
        return None


def _what_if(form: PlannerForm, found: Planned) -> dict[str, Any]:
    if not form.cleaned_data["what_if"]:
        return {}
    pool = form.cleaned_data["pool"] or None
    return {"replay": what_if.what_if(found.plan, pool=pool, now=timezone.now())}


def _shown(found: Planned) -> dict[str, Any]:
    steps = {step.name: step for step in found.plan.steps}
    return {
        "steps": found.plan.steps,
        "headlines": [steps[name] for name in HEADLINES],
        "inputs": input_lines(found.plan.inputs),
        "missing": [(BY_NAME[name].label, why) for name, why in found.missing.items()],
    }


def input_lines(inputs: Inputs) -> list[dict[str, Any]]:
    """Give every input that was used with label, unit and source."""
    return [{"field": BY_NAME[name], "known": known} for name, known in inputs.items()]
