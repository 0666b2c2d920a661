"""Tenants as staff see them: the list, and one tenant with limits, keys and members."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, ClassVar

from django.urls import reverse
from django.utils import timezone

from controlplane.console import preferences
from controlplane.console.charts import Chart
from controlplane.console.listing import Listing, Sorting
from controlplane.console.mixins import Page
from controlplane.tenants import selectors
from controlplane.tenants.filters import TenantFilter
from controlplane.tenants.models import ApiKey
from routing_agent.wire import LEASE_S

ENDING_SOON = timedelta(days=7)
KEY_SORTS = {
    name: name
    for name in ("name", "prefix", "last_used_at", "created_at", "created_by", "expires_at")
}
TENANT_CHARTS = {"requests": "Requests by outcome", "tenant-tokens": "Tokens"}


class TenantList(Listing):
    """All tenants with how many of their keys work."""

    template_name = "tenants/tenants.html"
    fragment_name = "tenants/_tenants.html"
    nav_name = "tenants"
    title = "Tenants"
    api_path = "/api/v1/tenants/"
    filter_class = TenantFilter
    sorts: ClassVar[dict[str, str]] = {
        "slug": "slug",
        "name": "name",
        "suspended": "suspended",
        "priority": "priority",
        "live_keys": "live_keys",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        "tenant": "slug",
        "name": "name",
        "priority": "priority",
        "suspended": "suspended",
        "live_keys": "live_keys",
    }

    def queryset(self) -> Any:
        """Give all tenants."""
        return selectors.tenants().prefetch_related("limitledger").order_by("-suspended", "slug")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Say of the tenants shown which of their limits is most used."""
        context = super().get_context_data(**kwargs)
        now = time.time()
        return context | {
            "uses": {t.pk: selectors.limit_use(t, now=now).tightest for t in context["page"]}
        }


class TenantPage(Page):
    """One tenant and its keys."""

    template_name = "tenants/tenant.html"
    fragment_name = "tenants/_tenant.html"
    nav_name = "tenants"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the tenant and its keys, those that work first unless sorted."""
        tenant = selectors.tenant(kwargs["slug"])
        sorting = Sorting.of(self.request.GET, KEY_SORTS)
        return super().get_context_data(**kwargs) | {
            "title": tenant.name,
            "api_path": f"/api/v1/tenants/{tenant.slug}/",
            "tenant": tenant,
            "sorting": sorting,
            "keys": keys_with_status(tenant.slug, sorting),
            "members": selectors.memberships(tenant=tenant.slug),
            "use": selectors.limit_use(tenant, now=time.time()),
            "lease_s": LEASE_S,
            "charts": tenant_charts(tenant.slug, preferences.read(self.request).window),
            "page_has_window": True,
        }


def tenant_charts(slug: str, window: str) -> list[Chart]:
    """Give the tenant's charts; their figures come from an app above this one."""
    return [
        Chart(
            id=name,
            title=title,
            url=reverse("tenant-chart", args=[slug, name]) + f"?window={window}",
        )
        for name, title in TENANT_CHARTS.items()
    ]


def keys_with_status(slug: str, sorting: Sorting) -> list[tuple[ApiKey, str]]:
    """Give a tenant's keys with whether they work; those that do come first unless sorted."""
    found = sorting.queryset(selectors.api_keys(tenant=slug), KEY_SORTS)
    keys = [(key, key_status(key)) for key in found]
    if sorting.order is not None:
        return keys
    return sorted(keys, key=lambda pair: pair[1] not in {"active", "ending"})


def key_status(key: ApiKey) -> str:
    """Say whether a key works."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    if key.expires_at is not None and key.expires_at - timezone.now() < ENDING_SOON:
        return "ending"
    return "active"
