"""A pool's shadow: set, changed and removed with a reason."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import ProblemError
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Pool, Shadow


class ShadowForm(forms.Form):
    """Where copies go, how many, and what is kept."""

    shadow_pool = forms.ChoiceField(
        label="Shadow pool", help_text="Of the same model, on other cards."
    )
    ratio_percent = forms.FloatField(
        label="Share of requests (%)", initial=10, min_value=0, max_value=100
    )
    at_once = forms.IntegerField(
        label="Copies at once, through each agent", initial=4, min_value=1, max_value=64
    )
    keep = forms.ChoiceField(
        label="Keep of each pair",
        choices=Shadow.Keep.choices,
        help_text="Texts may hold what tenants wrote: keep them only where that is agreed.",
    )
    reason = forms.CharField(label="Reason (goes into the audit log)", max_length=300)

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        others = Pool.objects.filter(model_version__model=pool.model_version.model)
        field: Any = self.fields["shadow_pool"]
        field.choices = [
            (p.slug, f"{p.slug} — {p.model_version.name}")
            for p in others.exclude(pk=pool.pk).select_related("model_version")
        ] or [("", "no other pool serves this model")]

    @classmethod
    def of(cls, pool: Pool, row: Shadow | None) -> ShadowForm:
        """Give the form as the pool's shadow is now."""
        if row is None:
            return cls(pool=pool)
        return cls(
            pool=pool,
            initial={
                "shadow_pool": row.shadow_pool.slug,
                "ratio_percent": row.ratio * 100,
                "at_once": row.at_once,
                "keep": row.keep,
            },
        )

    def fields_given(self) -> dict[str, Any]:
        """Give what the service is told."""
        given = {k: v for k, v in self.cleaned_data.items() if k != "reason"}
        given["ratio"] = given.pop("ratio_percent") / 100
        return given


class ShadowEdit(RoleRequired):
    """Set, change or remove a pool's shadow."""

    required_role = "operator"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the form as the shadow is now."""
        pool, row = selectors.pool(slug), selectors.shadows().filter(pool__slug=slug).first()
        return self._form(request, pool, row, ShadowForm.of(pool, row))

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Make the change, or say in the form what is wrong with it."""
        pool, row = selectors.pool(slug), selectors.shadows().filter(pool__slug=slug).first()
        if request.POST.get("step") == "remove":
            return self._remove(request, pool)
        form = ShadowForm(request.POST, pool=pool)
        if not form.is_valid():
            return self._form(request, pool, row, form, status=400)
        try:
            services.set_shadow(
                pool=slug,
                actor=Actor(request.user.get_username()),
                reason=form.cleaned_data["reason"],
                expected_version=actions.expected_version(request) if row else None,
                **form.fields_given(),
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(request, pool, row, form, status=problem.status)
        requested(request, f"Shadow of pool {slug} set.", revision=fleet_revision())
        return back_to(request, reverse("pool", args=[slug]))

    def _remove(self, request: HttpRequest, pool: Pool) -> HttpResponse:
        services.remove_shadow(
            pool=pool.slug,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
            expected_version=actions.expected_version(request),
        )
        requested(request, f"Shadow of pool {pool.slug} removed.", revision=fleet_revision())
        return back_to(request, reverse("pool", args=[pool.slug]))

    def _form(
        self,
        request: HttpRequest,
        pool: Pool,
        row: Shadow | None,
        form: ShadowForm,
        status: int = 200,
    ) -> HttpResponse:
        context = {
            "title": f"Shadow of {pool.slug}",
            "nav_name": "pools",
            "pool": pool,
            "row": row,
            "form": form,
            "layout": "dialog.html" if in_dialog(request) else "base.html",
        }
        return render(request, "fleet/shadow_edit.html", context, status=status)
