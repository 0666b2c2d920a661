"""Tenants made and changed by staff, in two steps; and what of its limits a tenant uses now."""

from __future__ import annotations

import time
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import Conflict, Invalid
from controlplane.tenants import selectors, services
from controlplane.tenants.forms import NewTenantForm, TenantForm
from controlplane.tenants.models import Tenant
from controlplane.tenants.views.area import AreaPage
from routing_agent.wire import LEASE_S


class TenantChange(RoleRequired):
    """What making and changing a tenant share."""

    required_role = "admin"

    def show(self, template: str, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page."""
        layout = "dialog.html" if in_dialog(self.request) else "base.html"
        return render(self.request, template, {"layout": layout, "nav_name": "tenants", **context})


class CreateTenant(TenantChange):
    """A new tenant; it can call nothing until it has a key."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Ask what it is called and what it may use."""
        return self._form(NewTenantForm(initial={"limits_when_unreachable": "open"}))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Make it and go to its page."""
        form = NewTenantForm(request.POST)
        if not form.is_valid():
            return self._form(form)
        fields = {n: v for n, v in form.cleaned_data.items() if n != "reason"}
        actor = Actor(request.user.get_username())
        try:
            services.create_tenant(actor=actor, reason=form.cleaned_data["reason"], **fields)
        except (Invalid, Conflict) as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(form)
        requested(request, f"Tenant {fields['slug']} created.", revision=fleet_revision())
        return back_to(request, reverse("tenant", args=[fields["slug"]]))

    def _form(self, form: NewTenantForm) -> HttpResponse:
        return self.show("tenants/tenant_new.html", title="New tenant", form=form)


class EditTenant(TenantChange):
    """Change a tenant's limits: a form, then before → after with the effect, then the change."""

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the form as the tenant is now."""
        tenant = selectors.tenant(slug)
        return self._show("tenants/tenant_edit.html", tenant, TenantForm.of(tenant))

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the difference, or make the change once it was confirmed."""
        tenant = selectors.tenant(slug)
        form = TenantForm(request.POST, tenant=tenant)
        if not form.is_valid() or request.POST.get("step") == "edit":
            return self._show("tenants/tenant_edit.html", tenant, form)
        if request.POST.get("step") != "apply":
            return self._show("tenants/tenant_review.html", tenant, form)
        try:
            return self._apply(request, tenant, form)
        except Invalid as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._show("tenants/tenant_edit.html", tenant, form)

    def _apply(self, request: HttpRequest, tenant: Tenant, form: TenantForm) -> HttpResponse:
        services.update_tenant(
            slug=tenant.slug,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
            expected_version=actions.expected_version(request),
            **form.changes(),
        )
        requested(request, f"Tenant {tenant.slug} changed.", revision=fleet_revision())
        return back_to(request, reverse("tenant", args=[tenant.slug]))

    def _show(self, template: str, tenant: Tenant, form: TenantForm) -> HttpResponse:
        is_whole = form.is_bound and form.is_valid()
        return self.show(
            template,
            title=f"Change {tenant.name}",
            tenant=tenant,
            form=form,
            differences=form.differences() if is_whole else [],
            version=self.request.POST.get("expected_version") or tenant.version,
        )


class AreaLimits(AreaPage):
    """What a tenant may use, what it uses now, and how much agents hold ready for it."""

    template_name = "area/limits.html"
    fragment_name = "area/_limits.html"
    nav_name = "area-limits"
    title = "Limits"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Read the ledger as it stands."""
        tenant = self.area.tenant
        return super().get_context_data(**kwargs) | {
            "api_path": f"/api/v1/quotas/{tenant.slug}/",
            "tenant": tenant,
            "use": selectors.limit_use(tenant, now=time.time()),
            "lease_s": LEASE_S,
        }
