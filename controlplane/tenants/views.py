"""Tenants: who may call what; issuing keys (shown once) and revoking them (for good)."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions, preferences
from controlplane.console.charts import Chart
from controlplane.console.listing import Listing
from controlplane.console.mixins import Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.tenants import selectors, services
from controlplane.tenants.filters import TenantFilter
from controlplane.tenants.forms import IssueKeyForm
from controlplane.tenants.models import ApiKey
from routing_agent.wire import LEASE_S

TENANT_CHARTS = {"requests": "Requests by outcome", "tenant-tokens": "Tokens"}


class TenantList(Listing):
    """All tenants with how many of their keys work."""

    template_name = "tenants/tenants.html"
    fragment_name = "tenants/_tenants.html"
    nav_name = "tenants"
    title = "Tenants"
    api_path = "/api/v1/tenants/"
    filter_class = TenantFilter
    csv_columns: ClassVar[dict[str, str]] = {
        "tenant": "slug",
        "name": "name",
        "priority": "priority",
        "suspended": "suspended",
        "live_keys": "live_keys",
    }

    def queryset(self) -> Any:
        """Give all tenants."""
        return selectors.tenants().order_by("-suspended", "slug")


class TenantPage(Page):
    """One tenant and its keys."""

    template_name = "tenants/tenant.html"
    fragment_name = "tenants/_tenant.html"
    nav_name = "tenants"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the tenant and its keys, those that work first."""
        tenant = selectors.tenant(kwargs["slug"])
        keys = [(key, key_status(key)) for key in selectors.api_keys(tenant=tenant.slug)]
        keys.sort(key=lambda pair: pair[1] != "active")
        return super().get_context_data(**kwargs) | {
            "title": tenant.name,
            "api_path": f"/api/v1/tenants/{tenant.slug}/",
            "tenant": tenant,
            "keys": keys,
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


def key_status(key: ApiKey) -> str:
    """Say whether a key works."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= timezone.now():
        return "expired"
    return "active"


class KeyAction(RoleRequired):
    """What issuing and revoking share."""

    required_role: ClassVar[str] = "operator"

    def show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page."""
        layout = "dialog.html" if in_dialog(self.request) else "base.html"
        frame = {"layout": layout, "nav_name": "tenants"}
        response = render(self.request, template, frame | context, status=status)
        response["Cache-Control"] = "no-store"
        return response


class IssueKey(KeyAction):
    """Give a tenant a new key; its text is shown in the answer and never again."""

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Ask for name, expiry and reason."""
        return self._form(slug, IssueKeyForm())

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Issue it and show its text."""
        form = IssueKeyForm(request.POST)
        if not form.is_valid():
            return self._form(slug, form)
        wanted = form.cleaned_data
        try:
            issued = services.issue_key(
                tenant=slug,
                name=wanted["name"],
                expires_at=wanted["expires_at"],
                actor=Actor(request.user.get_username()),
                reason=wanted["reason"],
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(slug, form)
        return self.show(
            "tenants/key_issued.html",
            title="Key issued",
            issued=issued,
            tenant=selectors.tenant(slug),
            revision=fleet_revision(),
        )

    def _form(self, slug: str, form: IssueKeyForm) -> HttpResponse:
        tenant = selectors.tenant(slug)
        return self.show(
            "tenants/key_issue.html",
            title=f"Issue a key for {tenant.name}",
            tenant=tenant,
            form=form,
        )


class RevokeKey(KeyAction):
    """End a key for good, after its name was typed."""

    def get(self, request: HttpRequest, public_id: str) -> HttpResponse:
        """Say what breaks and ask for the name."""
        return self._ask(self._key(public_id))

    def post(self, request: HttpRequest, public_id: str) -> HttpResponse:
        """Revoke it if the name was typed right."""
        key = self._key(public_id)
        if request.POST.get("typed", "").strip() != key.name:
            return self._ask(key, problem=f"Type {key.name} to revoke it. Nothing was changed.")
        services.revoke_key(
            public_id=public_id,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
        )
        requested(request, f"Key {key.name} revoked.", revision=fleet_revision())
        return back_to(request, reverse("tenant", args=[key.tenant.slug]))

    def _key(self, public_id: str) -> ApiKey:
        key = selectors.api_keys().filter(public_id=public_id).first()
        if key is None:
            raise NotFound(f"There is no API key '{public_id}'.")
        return key

    def _ask(self, key: ApiKey, problem: str = "") -> HttpResponse:
        return self.show(
            "tenants/key_revoke.html", title=f"Revoke key {key.name}", key=key, problem=problem
        )
