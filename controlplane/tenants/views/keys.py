"""API keys: issued and shown once, rotated with an overlap, revoked for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Sorting
from controlplane.console.mixins import RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.tenants import selectors, services
from controlplane.tenants.forms import IssueKeyForm, RotateKeyForm
from controlplane.tenants.models import ApiKey, Tenant, TenantRole
from controlplane.tenants.views.area import AreaPage, AreaRequired
from controlplane.tenants.views.pages import KEY_SORTS, keys_with_status


class KeyAction(RoleRequired):
    """What issuing, rotating and revoking share, in the console."""

    required_role: ClassVar[str] = "operator"

    def home(self, tenant: Tenant) -> str:
        """Give the page that lists the tenant's keys."""
        return reverse("tenant", args=[tenant.slug])

    def key(self, public_id: str) -> ApiKey:
        """Give a key, or raise NotFound."""
        found = selectors.api_keys().filter(public_id=public_id).first()
        if found is None:
            raise NotFound(f"There is no API key '{public_id}'.")
        return found

    def show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page."""
        layout = "dialog.html" if in_dialog(self.request) else "base.html"
        frame = {"layout": layout, "nav_name": "tenants"}
        response = render(self.request, template, frame | context, status=status)
        response["Cache-Control"] = "no-store"
        return response

    def show_issued(self, issued: services.IssuedKey, tenant: Tenant, title: str) -> HttpResponse:
        """Show a new key's text, this once."""
        return self.show(
            "tenants/key_issued.html",
            title=title,
            issued=issued,
            tenant=tenant,
            back=self.home(tenant),
            revision=fleet_revision(),
        )


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
        return self.show_issued(issued, selectors.tenant(slug), "Key issued")

    def _form(self, slug: str, form: IssueKeyForm) -> HttpResponse:
        tenant = selectors.tenant(slug)
        return self.show(
            "tenants/key_issue.html",
            title=f"Issue a key for {tenant.name}",
            tenant=tenant,
            back=self.home(tenant),
            form=form,
        )


class RotateKey(KeyAction):
    """Give a key a successor; the old one goes on for a while."""

    def get(self, request: HttpRequest, public_id: str, slug: str = "") -> HttpResponse:
        """Ask how long both shall work, and why."""
        return self._form(self.key(public_id), RotateKeyForm())

    def post(self, request: HttpRequest, public_id: str, slug: str = "") -> HttpResponse:
        """Issue the successor and show its text."""
        key = self.key(public_id)
        form = RotateKeyForm(request.POST)
        if not form.is_valid():
            return self._form(key, form)
        try:
            issued = services.rotate_key(
                public_id=public_id,
                overlap=timedelta(hours=form.cleaned_data["overlap_hours"]),
                actor=Actor(request.user.get_username()),
                reason=form.cleaned_data["reason"],
            )
        except ProblemError as problem:
            form.add_error(None, problem.message)
            return self._form(key, form)
        return self.show_issued(issued, key.tenant, f"Key {key.name} rotated")

    def _form(self, key: ApiKey, form: RotateKeyForm) -> HttpResponse:
        return self.show(
            "tenants/key_rotate.html",
            title=f"Rotate key {key.name}",
            key=key,
            back=self.home(key.tenant),
            form=form,
        )


class RevokeKey(KeyAction):
    """End a key for good, after its name was typed."""

    def get(self, request: HttpRequest, public_id: str, slug: str = "") -> HttpResponse:
        """Say what breaks and ask for the name."""
        return self._ask(self.key(public_id))

    def post(self, request: HttpRequest, public_id: str, slug: str = "") -> HttpResponse:
        """Revoke it if the name was typed right."""
        key = self.key(public_id)
        if request.POST.get("typed", "").strip() != key.name:
            return self._ask(key, problem=f"Type {key.name} to revoke it. Nothing was changed.")
        services.revoke_key(
            public_id=public_id,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
        )
        requested(request, f"Key {key.name} revoked.", revision=fleet_revision())
        return back_to(request, self.home(key.tenant))

    def _ask(self, key: ApiKey, problem: str = "") -> HttpResponse:
        return self.show(
            "tenants/key_revoke.html",
            title=f"Revoke key {key.name}",
            key=key,
            back=self.home(key.tenant),
            problem=problem,
        )


class AreaKeyAction(AreaRequired):
    """The same in a tenant's area: by its admins, and of its own keys only."""

    area_role = TenantRole.ADMIN

    def home(self, tenant: Tenant) -> str:
        """Give the area's page of keys."""
        return reverse("area-keys", args=[tenant.slug])

    def key(self, public_id: str) -> ApiKey:
        """Give a key of this tenant; another tenant's is as if it were not."""
        own = selectors.api_keys(tenant=self.area.tenant.slug)
        found = own.filter(public_id=public_id).first()
        if found is None:
            raise NotFound(f"There is no API key '{public_id}'.")
        return found

    def show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the area's frame."""
        return super().show(template, status, nav_name="area-keys", **context)


class AreaIssueKey(AreaKeyAction, IssueKey):
    """Issue a key of one's own tenant."""


class AreaRotateKey(AreaKeyAction, RotateKey):
    """Rotate a key of one's own tenant."""


class AreaRevokeKey(AreaKeyAction, RevokeKey):
    """Revoke a key of one's own tenant."""


class AreaKeys(AreaPage):
    """A tenant's keys."""

    template_name = "area/keys.html"
    fragment_name = "area/_keys.html"
    nav_name = "area-keys"
    title = "Keys"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the keys, those that work first unless sorted."""
        slug = self.area.tenant.slug
        sorting = Sorting.of(self.request.GET, KEY_SORTS)
        return super().get_context_data(**kwargs) | {
            "api_path": f"/api/v1/api-keys/?tenant={slug}",
            "sorting": sorting,
            "keys": keys_with_status(slug, sorting),
        }
