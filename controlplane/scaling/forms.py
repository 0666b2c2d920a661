"""The forms of a scaling policy and of an override."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone

from controlplane.console.widgets import Number
from controlplane.domain.errors import Invalid
from controlplane.scaling.models import ScalingPolicy
from controlplane.scaling.services.policies import FIELDS, facts

# Label, unit and what it does, in the order of the form.
TEXTS: dict[str, tuple[str, str]] = {
    "enabled": ("Scale by signals", "Off: the pool's wanted replicas hold."),
    "executor": ("Replicas are run by", "Only what agents run can be started and stopped."),
    "min_replicas": ("At least", "Replicas. 0: none while nobody asks; requests wait for a start."),
    "max_replicas": ("At most", "Replicas, spares not counted."),
    "queue_wait_limit_s": ("Queue wait limit (s)", "P95 of agent and engine queue together."),
    "kv_usage_limit": ("KV usage limit", "0 to 1, mean over ready replicas."),
    "queue_length_limit": ("Queue length limit", "Requests waiting for each ready replica."),
    "utilisation_low": ("Band from", "0 to 1. Below it for long, replicas are taken away."),
    "utilisation_high": ("Band to", "0 to 1. What is left may fill to this."),
    "cooldown_s": ("Cool-down (s)", "From a change, or a start's arrival, to the next."),
    "tolerance_ratio": ("Tolerance", "0 to 1. A limit passed by less changes nothing."),
    "step_factor": ("Step factor", "At most so many times as many at once, and as few."),
    "max_step": ("Most added at once", "Empty: as the factor says."),
    "scale_down_after_s": ("Down after (s)", "Of calm, without a break."),
    "warm_spares": ("Warm spares", "Loaded and warm, without traffic; promoted in seconds."),
    "drain_s": ("Drain limit (s)", "What streams may take that run on a replica taken away."),
    "start_wait_s": ("Wait for a start (s)", "With no replica, requests wait so long for one."),
    "loading_limit_s": ("Start limit (s)", "A start that takes longer has failed."),
    "program": ("Program", "Empty: the version's engine."),
    "model_source": ("Weights", "Below a folder the agents allow. Empty: the version's source."),
    "gpus_per_replica": ("GPUs a replica", "A power of two within one node."),
    "memory_ratio": ("Share of GPU memory", "0 to 1."),
    "engine_arguments": ("Engine options", "JSON, by the engine's own names."),
}


class PolicyForm(forms.ModelForm):
    """Everything people may say of a policy."""

    class Meta:
        model = ScalingPolicy
        fields = FIELDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (label, text) in TEXTS.items():
            self.fields[name].label = label
            self.fields[name].help_text = text
            if isinstance(self.fields[name], forms.FloatField):
                attributes = self.fields[name].widget.attrs
                self.fields[name].widget = Number({**attributes, "step": "any"})
        self.order_fields(list(TEXTS))

    def changes(self) -> dict[str, Any]:
        """Give what differs from the policy as it is; of a new one all of it."""
        given = {name: self.cleaned_data[name] for name in FIELDS}
        if self.instance.pk is None:
            return given
        now = facts(ScalingPolicy.objects.get(pk=self.instance.pk))
        return {name: value for name, value in given.items() if value != now[name]}

    def differences(self) -> list[tuple[str, str, str]]:
        """Give before → after, one line a change."""
        is_new = self.instance.pk is None
        now = {} if is_new else facts(ScalingPolicy.objects.get(pk=self.instance.pk))
        return [
            (str(self.fields[n].label), "none" if is_new else _shown(now[n]), _shown(value))
            for n, value in self.changes().items()
        ]

    def add_problem(self, problem: Invalid) -> None:
        """Show what a service refused at the field it names."""
        self.add_error(problem.field if problem.field in self.fields else None, problem.message)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value) if value else "none"
    return "none" if value in (None, "") else str(value)


HOURS = [("0.25", "15 minutes"), ("1", "1 hour"), ("4", "4 hours"), ("24", "1 day"),
         ("168", "1 week")]  # fmt: skip


class OverrideForm(forms.Form):
    """How many replicas, and for how long."""

    count = forms.IntegerField(min_value=0, label="Replicas wanted")
    hours = forms.ChoiceField(choices=HOURS, label="For", initial="1")
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")

    def __init__(self, *args: Any, policy: ScalingPolicy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        low, high = policy.min_replicas, policy.max_replicas
        self.fields["count"] = forms.IntegerField(
            min_value=low,
            max_value=high,
            label="Replicas wanted",
            help_text=f"Within the policy's bounds, {low} to {high}.",
        )

    @property
    def expires_at(self) -> Any:
        """Give when it ends."""
        return timezone.now() + timedelta(hours=float(self.cleaned_data["hours"]))
