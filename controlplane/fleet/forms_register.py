"""Forms that create a pool and take an engine into one."""

from __future__ import annotations

from typing import Any, get_args

from django import forms

from controlplane.catalog.models import ModelVersion
from controlplane.fleet.models import Node, Pool
from routing_agent import wire

WHY = "Reason (goes into the audit log)"


class NewPoolForm(forms.Form):
    """What a pool needs; everything else has a default that its policy may change."""

    slug = forms.SlugField(max_length=63, label="Name", help_text="Small letters, digits and -.")
    version = forms.ModelChoiceField(
        ModelVersion.objects.filter(retired_at=None)
        .select_related("model")
        .order_by("model", "pk"),
        label="Model version",
        empty_label="choose one",
    )
    overload_policy = forms.ChoiceField(
        choices=[c for c in Pool.Overload.choices if c[0] != Pool.Overload.FALLBACK],
        initial=Pool.Overload.QUEUE,
        label="When the pool is full",
        help_text="A fallback pool is chosen later, with the pool's policy.",
    )
    owner = forms.CharField(max_length=120, required=False, label="Owner")
    description = forms.CharField(max_length=300, required=False, label="Description")
    reason = forms.CharField(max_length=300, label=WHY)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choice: Any = self.fields["version"]
        choice.label_from_instance = lambda v: f"{v.model.name} {v.name}"


class NewReplicaForm(forms.Form):
    """Where an engine listens that somebody runs already."""

    pool = forms.ModelChoiceField(
        Pool.objects.order_by("slug"), to_field_name="slug", label="Pool", empty_label="choose one"
    )
    url = forms.CharField(
        max_length=300,
        label="Address",
        help_text="Where the engine listens, as agents reach it: http://10.0.0.5:8000",
    )
    engine = forms.ChoiceField(
        choices=[(e, e) for e in get_args(wire.EngineName)], initial="vllm", label="Engine"
    )
    node = forms.ModelChoiceField(
        Node.objects.order_by("name"),
        to_field_name="name",
        required=False,
        label="Node",
        empty_label="elsewhere",
        help_text="The machine it runs on, if an agent of ours is there.",
    )
    served_model = forms.CharField(
        max_length=200,
        required=False,
        label="Its name for the model",
        help_text="As it was started with. Empty: the model's own name.",
    )
    reason = forms.CharField(max_length=300, label=WHY)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool: Any = self.fields["pool"]
        node: Any = self.fields["node"]
        pool.label_from_instance = lambda p: p.slug
        node.label_from_instance = lambda n: n.name
