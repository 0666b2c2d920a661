"""Console pages of scaling: all pools, one pool, its policy, an override."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Sorting
from controlplane.console.mixins import Action, Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import Invalid
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Pool
from controlplane.scaling import rows, selectors, services
from controlplane.scaling.forms import OverrideForm, PolicyForm
from controlplane.scaling.models import ScalingPolicy

DECISIONS_SHOWN = 50
DECISION_SORTS = {
    "at": "at",
    "last_at": "last_at",
    "pool": "pool__slug",
    "wanted": "wanted",
    "raw": "raw",
}


def decisions_shown(request: HttpRequest, pool: str | None = None) -> dict[str, Any]:
    """Give a page of decisions, of all pools or one, in the order that the address asks for."""
    sorting = Sorting.of(request.GET, DECISION_SORTS)
    found = sorting.queryset(selectors.decisions(pool=pool), DECISION_SORTS)
    page = Paginator(found, DECISIONS_SHOWN).get_page(request.GET.get("page"))
    return {"sorting": sorting, "page": page}


class ScalingList(Page):
    """All pools that scale, and what was decided lately."""

    template_name = "scaling/scaling.html"
    fragment_name = "scaling/_scaling.html"
    nav_name = "scaling"
    title = "Scaling"
    api_path = "/api/v1/scaling-policies/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather pools and decisions."""
        found = list(selectors.policies())
        return super().get_context_data(**kwargs) | {
            "rows": rows.scaling_rows(found, timezone.now()),
            "without": Pool.objects.filter(scaling_policy=None).order_by("slug"),
            **decisions_shown(self.request),
        }


class ScalingPage(Page):
    """One pool's scaling: wanted, there, on its way; signals with ages; decisions."""

    template_name = "scaling/pool.html"
    fragment_name = "scaling/_pool.html"
    nav_name = "scaling"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather everything of one pool."""
        slug = kwargs["slug"]
        pool = fleet.pool(slug)
        offer = f'{{"pool": "{slug}", "min_replicas": 1, "max_replicas": 4}}'
        policy = selectors.policies().filter(pool=pool).first()
        context: dict[str, Any] = {
            "title": f"Scaling of {slug}",
            "api_path": f"/api/v1/scaling-policies/{slug}/" if policy else "",
            "pool": pool,
            "policy": policy,
            "offer_body": offer,
        }
        if policy is not None:
            row = rows.scaling_row(policy, timezone.now())
            context |= {
                "row": row,
                "cold_starts": rows.cold_starts_of(row),
                "lines": policy_lines(policy),
                **decisions_shown(self.request, slug),
            }
        return super().get_context_data(**kwargs) | context


def policy_lines(policy: ScalingPolicy) -> list[tuple[str, Any, str]]:
    """Give a policy in words: label, value, what it does."""
    form = PolicyForm(instance=policy)
    return [
        (str(field.label), getattr(policy, name), str(field.help_text))
        for name, field in form.fields.items()
    ]


class PolicyEdit(RoleRequired):
    """Set a policy: a form, then before → after with the effect, then the change."""

    required_role = "operator"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the form as the policy is now."""
        pool, policy = _found(slug)
        return self._show(request, "scaling/policy_edit.html", pool, policy, _form(pool, policy))

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the difference, or make the change once it was confirmed."""
        pool, policy = _found(slug)
        form = _form(pool, policy, request.POST)
        step = request.POST.get("step")
        if not form.is_valid() or step == "edit":
            return self._show(request, "scaling/policy_edit.html", pool, policy, form)
        if step != "apply":
            return self._show(request, "scaling/policy_review.html", pool, policy, form)
        try:
            services.set_policy(
                pool=slug,
                actor=Actor(request.user.get_username()),
                reason=actions.reason(request, required=True),
                expected_version=actions.expected_version(request),
                **form.changes(),
            )
        except Invalid as problem:
            form.add_problem(problem)
            return self._show(request, "scaling/policy_edit.html", pool, policy, form)
        requested(request, f"Scaling policy of {slug} set.", revision=fleet_revision())
        return back_to(request, reverse("scaling-pool", args=[slug]))

    def _show(
        self,
        request: HttpRequest,
        template: str,
        pool: Pool,
        policy: ScalingPolicy | None,
        form: PolicyForm,
    ) -> HttpResponse:
        context = {
            "pool": pool,
            "form": form,
            "differences": form.differences() if form.is_bound and form.is_valid() else [],
            "title": f"Scaling policy of {pool.slug}",
            "nav_name": "scaling",
            "layout": "dialog.html" if in_dialog(request) else "base.html",
            "version": request.POST.get("expected_version")
            or (policy.version if policy is not None else 0),
        }
        return render(request, template, context)


def _found(slug: str) -> tuple[Pool, ScalingPolicy | None]:
    pool = fleet.pool(slug)
    return pool, selectors.policies().filter(pool=pool).first()


def _form(pool: Pool, policy: ScalingPolicy | None, data: Any = None) -> PolicyForm:
    return PolicyForm(data, instance=policy or ScalingPolicy(pool=pool))


class OverrideEdit(RoleRequired):
    """Want a number of replicas for a while: a form that says what will happen."""

    required_role = "operator"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the form."""
        policy = selectors.policy(slug)
        row = rows.scaling_row(policy, timezone.now())
        form = OverrideForm(policy=policy, initial={"count": max(row.ready, policy.min_replicas)})
        return self._show(request, row, form)

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Make the override."""
        policy = selectors.policy(slug)
        form = OverrideForm(request.POST, policy=policy)
        if not form.is_valid():
            return self._show(request, rows.scaling_row(policy, timezone.now()), form)
        services.set_override(
            pool=slug,
            count=form.cleaned_data["count"],
            expires_at=form.expires_at,
            actor=Actor(request.user.get_username()),
            reason=form.cleaned_data["reason"],
        )
        requested(request, f"Pool {slug}: {form.cleaned_data['count']} replicas wanted.")
        return back_to(request, reverse("scaling-pool", args=[slug]))

    def _show(self, request: HttpRequest, row: rows.ScalingRow, form: OverrideForm) -> HttpResponse:
        context = {
            "row": row,
            "pool": row.policy.pool,
            "form": form,
            "title": f"Override scaling of {row.slug}",
            "nav_name": "scaling",
            "layout": "dialog.html" if in_dialog(request) else "base.html",
        }
        return render(request, "scaling/override.html", context)


class EndOverride(Action):
    """Let the signals decide again."""

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """End the override that holds."""
        services.end_override(
            pool=slug, actor=Actor(request.user.get_username()), reason=actions.reason(request)
        )
        requested(request, f"Pool {slug} scales by its signals again.")
        return back_to(request, reverse("scaling-pool", args=[slug]))
