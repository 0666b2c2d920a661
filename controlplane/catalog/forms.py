"""The form that registers a model's version, and with its first version the model."""

from __future__ import annotations

from typing import Any, get_args

from django import forms

from controlplane.catalog.models import Dtype, Kind, Model
from routing_agent import wire


class VersionForm(forms.Form):
    """What must be known of a version, and what the planner and the executors like to know."""

    in_columns = True

    model = forms.CharField(
        max_length=200,
        label="Model",
        help_text="What clients send as “model”. A new name makes a new model.",
        widget=forms.TextInput({"list": "known-models", "autocomplete": "off"}),
    )
    kind = forms.ChoiceField(
        choices=Kind.choices, label="It is asked for", help_text="Of a new model only."
    )
    name = forms.CharField(
        max_length=100, initial="v1", label="Version", help_text="Unique within the model."
    )
    engine = forms.ChoiceField(
        choices=[(e, e) for e in get_args(wire.EngineName)], initial="vllm", label="Engine"
    )
    source = forms.CharField(
        max_length=300,
        required=False,
        label="Weights",
        help_text="Where they come from: a folder, or a name at Hugging Face. May stay empty.",
    )
    parameters = forms.IntegerField(
        min_value=1, required=False, label="Parameters", help_text="For the planner."
    )
    context_tokens = forms.IntegerField(
        min_value=1, required=False, label="Longest context (tokens)"
    )
    dtype = forms.ChoiceField(choices=Dtype.choices, initial=Dtype.BF16, label="Weights are")
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")

    def known_models(self) -> list[str]:
        """Give the names to choose from."""
        return list(Model.objects.order_by("name").values_list("name", flat=True)[:200])

    def facts(self) -> dict[str, Any]:
        """Give what is said of the version itself."""
        ours = {"model", "kind", "name", "reason"}
        return {n: v for n, v in self.cleaned_data.items() if n not in ours}
