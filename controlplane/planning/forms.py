"""The planner's form: its fields come from the one table of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.forms.boundfield import BoundField

from controlplane.console.widgets import Number
from controlplane.domain.errors import ProblemError
from controlplane.domain.planning_inputs import FIELDS, Field, Inputs

GROUPS: Final = {"load": "Load", "model": "Model", "gpu": "GPUs"}


class PlannerForm(forms.Form):
    """What to plan for; what is left empty comes from the pool, the named model or a default."""

    pool = forms.ChoiceField(required=False, label="Pool")
    what_if = forms.BooleanField(
        required=False,
        label="Replay its busiest ten minutes over simulated fleets",
        help_text="Takes a few seconds; needs a pool with traffic and a GPU of the table.",
    )

    def __init__(self, data: Mapping[str, Any] | None, *, pools: list[str]) -> None:
        super().__init__(data)
        chooser = self.fields["pool"]
        assert isinstance(chooser, forms.ChoiceField)  # noqa: S101 - tells the type checker
        chooser.choices = [("", "none"), *((slug, slug) for slug in pools)]
        for field in FIELDS:
            self.fields[field.name] = _input(field)

    def entered(self) -> dict[str, Any]:
        """Give what was typed by input; None where nothing was."""
        values = {f.name: self.cleaned_data[f.name] for f in FIELDS}
        return {name: None if value == "" else value for name, value in values.items()}

    def show_known(self, inputs: Inputs) -> None:
        """Show in empty inputs what is used instead."""
        for name, known in inputs.items():
            widget = self.fields[name].widget
            if isinstance(widget, forms.Select):
                widget.choices = [
                    ("", f"{known.value} ({known.source})"),
                    *list(widget.choices)[1:],
                ]
            else:
                widget.attrs["placeholder"] = f"{known.value:.12g}"

    def show_problem(self, problem: ProblemError) -> None:
        """Show a problem at the input it names, else above all."""
        self.add_error(problem.field if problem.field in self.fields else None, problem.message)

    def grouped(self) -> list[tuple[str, list[BoundField]]]:
        """Give the inputs by group, with the group's title."""
        return [
            (title, [self[f.name] for f in FIELDS if f.group == group])
            for group, title in GROUPS.items()
        ]


def _input(field: Field) -> forms.Field:
    label = f"{field.label} ({field.unit})" if field.unit else field.label
    given: dict[str, Any] = {"label": label, "help_text": field.help, "required": False}
    if field.kind == "choice":
        return forms.ChoiceField(choices=[("", "—"), *((c, c) for c in field.choices)], **given)
    return forms.FloatField(widget=Number({"step": "any"}), **given)
