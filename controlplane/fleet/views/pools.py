"""Pools: the list, a pool's page, and the change of its policy in two steps."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions, preferences
from controlplane.console.listing import Listing, Sorting
from controlplane.console.mixins import Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain import pool_settings
from controlplane.domain.errors import Invalid
from controlplane.domain.replica_states import State
from controlplane.fleet import rows, selectors, services
from controlplane.fleet.filters import PoolFilter
from controlplane.fleet.forms import PoolForm
from controlplane.fleet.models import Pool
from controlplane.fleet.views import charts
from controlplane.telemetry import recent


class PoolList(Listing):
    """All pools, troubled ones first."""

    template_name = "fleet/pools.html"
    fragment_name = "fleet/_pools.html"
    nav_name = "pools"
    title = "Pools"
    api_path = "/api/v1/pools/"
    filter_class = PoolFilter
    row_sorts: ClassVar[dict[str, str]] = {
        "slug": "slug",
        "status": "health.rank",
        "model_version": "version_name",
        "ready_count": "counts.ready",
        "ttft_p95_s": "figures.ttft_p95_s",
        "tpot_p95_s": "figures.tpot_p95_s",
        "queue_wait_p95_s": "figures.queue_wait_p95_s",
        "kv_usage_max": "kv_usage_max",
        "hit_rate": "figures.hit_rate",
        "requests_per_s": "figures.requests_per_s",
        "failed_ratio": "figures.failed_ratio",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        "pool": "slug",
        "status": "health.code",
        "ready": "counts.ready",
        "expected": "expected",
        "ttft_p95_s": "figures.ttft_p95_s",
        "tpot_p95_s": "figures.tpot_p95_s",
        "queue_wait_p95_s": "figures.queue_wait_p95_s",
        "kv_usage_max": "kv_usage_max",
        "requests_per_s": "figures.requests_per_s",
    }

    def queryset(self) -> Any:
        """Give all pools with their counts."""
        return selectors.pools_overview()

    def rows(self, found: Any) -> list[rows.PoolRow]:
        """Add the live figures."""
        return rows.pool_rows(found, rows.reports())

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Say why there are no figures, if there are none: it is not that nothing was measured."""
        return super().get_context_data(problem=recent.store().problem(), **kwargs)


class PoolPage(Page):
    """One pool: figures, charts, replicas."""

    template_name = "fleet/pool.html"
    fragment_name = "fleet/_pool.html"
    nav_name = "pools"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the pool, its replicas and, for a whole page, its charts."""
        pool = selectors.pool(kwargs["slug"])
        reports = rows.reports()
        sorting = Sorting.of(self.request.GET, rows.REPLICA_SORTS)
        shown = selectors.replicas(pool=pool.slug).select_related("node__agent")
        if not self.request.GET.get("stopped"):
            shown = shown.exclude(state=State.STOPPED)
        context = {
            "title": pool.slug,
            "api_path": f"/api/v1/pools/{pool.slug}/",
            "pool": pool,
            "row": rows.pool_rows([pool], reports)[0],
            "sorting": sorting,
            "replicas": sorting.rows(rows.replica_rows(shown, reports), rows.REPLICA_SORTS),
            "reports": reports,
            "policy": pool_settings.resolved_as_far_as_possible(pool.settings)[0].policy,
            "gpus": rows.gpu_cells(shown, reports),
            "splits": selectors.splits().filter(pool=pool),
            "shares": session_shares(pool),
            "shadow": selectors.shadows().filter(pool=pool).first(),
            "shadow_of": selectors.shadows().filter(shadow_pool=pool),
            "page_has_window": True,
            "offer_address": f"{reverse('register-replica')}?pool={pool.slug}",
            "offer_body": f'{{"pool": "{pool.slug}", "url": "http://HOST:PORT"}}',
        }
        if not getattr(self.request, "htmx", False):
            chosen = preferences.read(self.request).window
            context["charts"] = charts.pool_charts(pool.slug, chosen)
            context["settings"] = setting_rows(pool)
        return super().get_context_data(**kwargs) | context


def session_shares(pool: Pool) -> list[tuple[str, float | None]]:
    """Give what share of a model's sessions goes to a pool, 0 to 1; None: nobody has weight."""
    found = []
    for split in selectors.splits().filter(pool=pool):
        weights = selectors.splits(model=split.model.name).values_list("weight", flat=True)
        total = sum(weights)
        found.append((split.model.name, split.weight / total if total else None))
    return found


def setting_rows(pool: Pool) -> list[dict[str, Any]]:
    """Give a pool's settings in words: effective value, default, whether changed."""
    effective, _ = pool_settings.resolved_as_far_as_possible(pool.settings)
    return [
        {
            "setting": setting,
            "value": getattr(effective, name),
            "changed": name in pool.settings,
        }
        for name, setting in pool_settings.SETTINGS.items()
    ]


class PoolEdit(RoleRequired):
    """Change a pool's policy: a form, then before → after with the effect, then the change."""

    required_role = "operator"

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the form as the pool is now."""
        pool = selectors.pool(slug)
        return self._form(request, pool, PoolForm.of(pool))

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the difference, or make the change once it was confirmed."""
        pool = selectors.pool(slug)
        form = PoolForm(request.POST, pool=pool)
        if not form.is_valid() or request.POST.get("step") == "edit":
            return self._form(request, pool, form)
        if request.POST.get("step") != "apply":
            return self._review(request, pool, form)
        try:
            return self._apply(request, pool, form)
        except Invalid as problem:
            form.add_problem(problem)
            return self._form(request, pool, form)

    def _apply(self, request: HttpRequest, pool: Pool, form: PoolForm) -> HttpResponse:
        services.update_pool(
            slug=pool.slug,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
            expected_version=actions.expected_version(request),
            **form.changes(),
        )
        requested(request, f"Policy of pool {pool.slug} changed.", revision=fleet_revision())
        return back_to(request, reverse("pool", args=[pool.slug]))

    def _form(self, request: HttpRequest, pool: Pool, form: PoolForm) -> HttpResponse:
        return self._show(request, "fleet/pool_edit.html", pool, form)

    def _review(self, request: HttpRequest, pool: Pool, form: PoolForm) -> HttpResponse:
        return self._show(request, "fleet/pool_review.html", pool, form)

    def _show(
        self, request: HttpRequest, template: str, pool: Pool, form: PoolForm
    ) -> HttpResponse:
        context = {
            "pool": pool,
            "form": form,
            "differences": form.differences() if form.is_bound and form.is_valid() else [],
            "warnings": form.warnings(),
            "title": f"Change policy of {pool.slug}",
            "nav_name": "pools",
            "layout": "dialog.html" if in_dialog(request) else "base.html",
            "version": request.POST.get("expected_version") or pool.version,
        }
        return render(request, template, context)
