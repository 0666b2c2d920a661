"""How a model's sessions are split over its pools: weights, set by hand with a reason."""

from __future__ import annotations

from typing import Any

from django import forms
from django.urls import reverse

from controlplane.audit.asking import Asking
from controlplane.catalog.models import Model
from controlplane.console.quantities import percent
from controlplane.fleet import selectors, services
from controlplane.fleet.forms_register import WHY

PREFIX = "weight-"


class SplitForm(forms.Form):
    """A weight for each pool of the model."""

    reason = forms.CharField(max_length=300, label=WHY)
    version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, data: Any, *, model: Model) -> None:
        super().__init__(data, initial={"version": model.version})
        now = dict(selectors.splits(model=model.name).values_list("pool__slug", "weight"))
        total = sum(now.values())
        self.pools = list(selectors.pools_of(model))
        for slug in self.pools:
            weight = now.get(slug, 0.0)
            share = percent(weight / total) if total else "no pool has a share"
            self.fields[f"{PREFIX}{slug}"] = forms.FloatField(
                label=slug,
                min_value=0,
                initial=f"{weight:g}",
                help_text=f"Now {weight:g}: {share}.",
            )
        self.order_fields([*(f"{PREFIX}{slug}" for slug in self.pools), "reason"])

    def weights(self) -> dict[str, float]:
        """Give the weights by pool."""
        return {slug: self.cleaned_data[f"{PREFIX}{slug}"] for slug in self.pools}


class SplitEdit(Asking):
    """Move a model's sessions between its pools at once; a rollout does it step by step."""

    nav_name = "pools"
    explained = (
        "Of the model's sessions each pool gets the share that its weight has of all: 30 beside 70"
        " is 30 %, and 0 takes a pool out. Running requests end where they are; sessions move only"
        " towards a pool that grows. To move them step by step and judged, start a rollout."
    )
    button = "Set weights"
    follows = True

    def title_for(self, **address: Any) -> str:
        """Name the model: its other pools are changed, too."""
        return f"Traffic of {_model(address['slug']).name}"

    def form(self, data: Any, **address: Any) -> SplitForm:
        """Give the form with the weights as they are."""
        return SplitForm(data, model=_model(address["slug"]))

    def change(self, form: SplitForm, who: dict[str, Any], **address: Any) -> str:
        """Set them, if nobody was faster."""
        name = _model(address["slug"]).name
        version = form.cleaned_data["version"]
        services.set_splits(model=name, weights=form.weights(), expected_version=version, **who)
        return f"Weights of {name} set."

    def back(self, **address: Any) -> str:
        """Go to the pool."""
        return reverse("pool", args=[address["slug"]])


def _model(slug: str) -> Model:
    return selectors.pool(slug).model_version.model
