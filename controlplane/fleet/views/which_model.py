"""Which model: rules of models, what became of requests by them, and the form that changes them."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.catalog import selectors as catalog
from controlplane.catalog import services
from controlplane.catalog.models import Model
from controlplane.console import actions
from controlplane.console.mixins import Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain import which_model
from controlplane.domain.errors import Invalid
from controlplane.fleet import rows
from controlplane.fleet.model_paths import model_lines
from controlplane.telemetry.snapshots import NoData
from routing_agent.core.complexity import FEATURES


class WhichModel(Page):
    """Which model answers: the split and what it saved."""

    template_name = "fleet/which_model.html"
    fragment_name = "fleet/_which_model.html"
    nav_name = "which-model"
    title = "Which model"
    api_path = "/api/v1/which-model/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather rules and what agents count."""
        reports = rows.reports()
        problem = reports.reason if isinstance(reports, NoData) else ""
        lines = model_lines(reports)
        counted = any(line.has_rule for line in lines)
        return super().get_context_data(lines=lines, problem=problem, counted=counted, **kwargs)


class RuleForm(forms.Form):
    """A model's cascade field by field, and its classes as JSON."""

    cascade_to = forms.ChoiceField(
        required=False, label="Cascade: ask instead", help_text="Where an answer is not trusted."
    )
    min_mean_logprob = forms.FloatField(
        required=False,
        max_value=0,
        label="Mean log-probability, least",
        help_text="Below it an answer is not trusted; for example -1. Empty: not looked at.",
    )
    on_cut = forms.BooleanField(required=False, label="Not trusted if cut off at its length")
    on_refusal = forms.BooleanField(required=False, label="Not trusted if it says that it cannot")
    complexity = forms.CharField(
        required=False,
        label="Classes (JSON)",
        widget=forms.Textarea({"rows": 8, "spellcheck": "false"}),
        help_text=f"weights of {', '.join(FEATURES)}; bias; classes with name, model and below. "
        "Empty: no classes.",
    )

    def __init__(self, *args: Any, model: Model, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = model
        names = Model.objects.exclude(pk=model.pk).values_list("name", flat=True)
        choice: Any = self.fields["cascade_to"]
        choice.choices = [("", "no cascade"), *((name, name) for name in names.order_by("name"))]

    @classmethod
    def of(cls, model: Model) -> RuleForm:
        """Give the form as the model is now."""
        cascade = model.cascade if isinstance(model.cascade, dict) else {}
        initial = {
            "cascade_to": cascade.get("to", ""),
            "min_mean_logprob": cascade.get("min_mean_logprob"),
            "on_cut": cascade.get("on_cut", True),
            "on_refusal": cascade.get("on_refusal", True),
            "complexity": json.dumps(model.complexity, indent=1) if model.complexity else "",
        }
        return cls(model=model, initial=initial)

    def clean_complexity(self) -> Any:
        """Read the classes, and refuse what is not sound."""
        text = self.cleaned_data["complexity"].strip()
        if not text:
            return None
        try:
            rule = json.loads(text)
            which_model.complexity_of(rule)
        except (ValueError, RecursionError) as fault:
            raise forms.ValidationError(f"This is not JSON: {fault}") from fault
        except Invalid as fault:
            raise forms.ValidationError(fault.message) from fault
        return rule

    def changes(self) -> dict[str, Any]:
        """Give what differs from the model as it is."""
        given = self.cleaned_data
        cascade = None
        if given["cascade_to"]:
            cascade = {
                "to": given["cascade_to"],
                "min_mean_logprob": given["min_mean_logprob"],
                "on_cut": given["on_cut"],
                "on_refusal": given["on_refusal"],
            }
        wanted = {"complexity": given["complexity"], "cascade": cascade}
        return {n: v for n, v in wanted.items() if v != getattr(self.model, n)}


class EditRule(RoleRequired):
    """Change a model's rules: a form, then before → after, then the change."""

    required_role = "operator"

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the form as the model is now."""
        model = catalog.model(name)
        return self._show("fleet/which_model_edit.html", model, RuleForm.of(model))

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the difference, or make the change once it was confirmed."""
        model = catalog.model(name)
        form = RuleForm(request.POST, model=model)
        step = request.POST.get("step")
        if not form.is_valid() or step == "edit":
            return self._show("fleet/which_model_edit.html", model, form)
        if step != "apply":
            return self._show("fleet/which_model_review.html", model, form)
        try:
            services.update_model(
                name=model.name,
                actor=Actor(request.user.get_username()),
                reason=actions.reason(request, required=True),
                expected_version=actions.expected_version(request),
                **form.changes(),
            )
        except Invalid as problem:
            form.add_error(None, problem.message)
            return self._show("fleet/which_model_edit.html", model, form)
        requested(request, f"Rules of {model.name} changed.", revision=fleet_revision())
        return back_to(request, reverse("which-model"))

    def _show(self, template: str, model: Model, form: RuleForm) -> HttpResponse:
        is_whole = form.is_bound and form.is_valid()
        changes = form.changes() if is_whole else {}
        context = {
            "layout": "dialog.html" if in_dialog(self.request) else "base.html",
            "nav_name": "which-model",
            "title": f"Which model answers for {model.name}",
            "model": model,
            "form": form,
            "differences": [(n, getattr(model, n), value) for n, value in changes.items()],
            "version": self.request.POST.get("expected_version") or model.version,
        }
        return render(self.request, template, context)
