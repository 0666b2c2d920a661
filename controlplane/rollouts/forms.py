"""The form that starts a rollout."""

from __future__ import annotations

from typing import Any

from django import forms

from controlplane.console.widgets import Number
from controlplane.domain import rollouts
from controlplane.fleet.models import Pool


class StartForm(forms.Form):
    """From which pool to which, and how carefully."""

    stable_pool = forms.ChoiceField(label="Stable pool", help_text="It serves the model now.")
    canary_pool = forms.ChoiceField(
        label="Canary pool",
        help_text="It serves the new version: same model, no share yet, a ready replica.",
    )
    percents = forms.CharField(
        label="Steps (% of stable's share)",
        initial=", ".join(f"{p:g}" for p in rollouts.DEFAULT_STEPS),
        help_text="Rising, the last is 100.",
    )
    bake_s = forms.FloatField(
        label="Bake time a step (seconds)",
        initial=rollouts.BAKE_S,
        widget=Number,
        min_value=0,
        max_value=7 * 86400,
        help_text="Counted while figures arrive, from when every agent obeys the step.",
    )
    min_requests = forms.IntegerField(
        label="Requests a step, at least",
        initial=rollouts.MIN_REQUESTS,
        min_value=1,
        max_value=10_000_000,
    )
    regression_percent = forms.FloatField(
        label="Regression limit (%)",
        initial=rollouts.REGRESSION_LIMIT * 100,
        widget=Number,
        min_value=0,
        max_value=1000,
        help_text="A canary proven worse by more than this is taken back at once.",
    )
    override_budget = forms.BooleanField(
        label="Although an error budget is spent",
        required=False,
        help_text="Only asked for where one is; the audit log keeps who overrode it.",
    )
    reason = forms.CharField(label="Reason (goes into the audit log)", max_length=300)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pools = Pool.objects.select_related("model_version__model")
        choices = [
            (p.slug, f"{p.slug} — {p.model_version.model.name} {p.model_version.name}")
            for p in pools
        ]
        for name in ("stable_pool", "canary_pool"):
            field: Any = self.fields[name]
            field.choices = [("", "choose a pool"), *choices]

    def clean_percents(self) -> list[float]:
        """Read the steps."""
        try:
            found = [float(part) for part in self.cleaned_data["percents"].split(",")]
        except ValueError as error:
            raise forms.ValidationError("Numbers with commas between them.") from error
        fault = rollouts.steps_fault(found)
        if fault:
            raise forms.ValidationError(f"{fault[0].upper()}{fault[1:]}.")
        return found

    def rules(self) -> dict[str, Any]:
        """Give what the service is told."""
        given = {k: v for k, v in self.cleaned_data.items() if k != "reason"}
        given["regression_limit"] = given.pop("regression_percent") / 100.0
        return given
