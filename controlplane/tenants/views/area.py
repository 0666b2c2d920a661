"""The frame of a tenant's own area: who may enter, its menu, its way in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.generic import View

from controlplane.console import nav
from controlplane.console.mixins import Page, RoleRequired, in_dialog
from controlplane.tenants.models import Tenant, TenantRole
from controlplane.tenants.scope import Scope, includes, scope_of


@dataclass(frozen=True, slots=True)
class Area:
    """A tenant's area as the person signed in may use it."""

    tenant: Tenant
    role: TenantRole

    @property
    def may_manage(self) -> bool:
        """Say whether they may change things here."""
        return includes(self.role, TenantRole.ADMIN)

    @property
    def menu(self) -> list[tuple[nav.Entry, str]]:
        """Give the pages that there are."""
        return nav.area_menu(self.tenant.slug)


class AreaRequired(RoleRequired):
    """Lets the members of the tenant in the address in, and staff; for others there is nothing.

    `request.area` tells which tenant, and what the visitor may do there.
    """

    area_role: ClassVar[TenantRole] = TenantRole.MEMBER

    def admit(self, request: HttpRequest, **kwargs: Any) -> None:
        """Find the tenant and the visitor's role in it; a stranger learns not even that it is."""
        tenant = Tenant.objects.filter(slug=kwargs["slug"]).first()
        role = scope_of(request.user).role_in(tenant.slug) if tenant else None
        if tenant is None or role is None:
            raise Http404("There is no page at this address.")
        if not includes(role, self.area_role):
            raise PermissionDenied("This needs a tenant admin: ask one of yours.")
        request.area = Area(tenant, role)  # type: ignore[attr-defined]

    @property
    def area(self) -> Area:
        """Give the area that was entered."""
        found: Area = self.request.area  # type: ignore[attr-defined]
        return found

    def show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page of the area; never kept by a browser."""
        layout = "dialog.html" if in_dialog(self.request) else "area/base.html"
        response = render(self.request, template, {"layout": layout, **context}, status=status)
        response["Cache-Control"] = "no-store"
        return response


class AreaPage(AreaRequired, Page):
    """A page of a tenant's area; its template extends `area/base.html`."""


class AreaHome(View):
    """`/t/`: the way to one's tenant; who has several chooses."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Go there, or list them."""
        if not request.user.is_authenticated:
            return redirect(f"{reverse('login')}?next={request.path}")
        slugs = sorted(scope_of(request.user).tenants)
        if len(slugs) == 1:
            return redirect("area-usage", slugs[0])
        tenants = Tenant.objects.filter(slug__in=slugs).order_by("slug")
        return render(request, "area/choose.html", {"title": "Tenants", "tenants": tenants})


def home_of(scope: Scope) -> str | None:
    """Give the address where somebody without a staff role belongs; None for staff and others."""
    if scope.staff is not None or not scope.tenants:
        return None
    slugs = list(scope.tenants)
    return reverse("area-usage", args=slugs) if len(slugs) == 1 else reverse("area-home")
