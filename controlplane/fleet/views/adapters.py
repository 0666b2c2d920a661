"""Adapters in the console and in a tenant's own area: which there are, and where each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.catalog import selectors
from controlplane.catalog.models import Adapter
from controlplane.console.listing import Listing
from controlplane.console.mixins import Page, RoleRequired, in_dialog
from controlplane.fleet.adapter_rows import (
    AdapterRow,
    adapter_row,
    adapter_rows,
    sharing_by_model,
)
from controlplane.fleet.filters import AdapterFilter, AreaAdapterFilter
from controlplane.tenants.views.area import AreaRequired


class InConsole(RoleRequired):
    """Adapters of all tenants, for staff."""

    prefix: ClassVar[str] = ""
    layout: ClassVar[str] = "base.html"
    menu_entry: ClassVar[str] = "adapters"

    def tenants(self) -> list[str] | None:
        """Give whose adapters are shown, by slug; None: everybody's."""
        return None

    def address(self, name: str, *parts: str) -> str:
        """Give the address of a page of adapters in this frame."""
        return reverse(f"{self.prefix}{name}", args=parts)

    def may(self, what: str) -> bool:
        """Say whether the reader may upload, pin, share or delete."""
        return str(self.request.role) in {"operator", "admin"}  # type: ignore[attr-defined]

    def frame(self) -> dict[str, Any]:
        """Give what every template of adapters needs."""
        dialog = in_dialog(self.request)
        return {
            "layout": "dialog.html" if dialog else self.layout,
            "nav_name": self.menu_entry,
            "in_area": bool(self.prefix),
            "back": self.address("adapters"),
            **{f"may_{what}": self.may(what) for what in ("upload", "pin", "share", "delete")},
        }

    def show(self, template: str, *, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page."""
        return render(self.request, template, self.frame() | context, status=status)

    def adapter(self, public_id: str) -> Adapter:
        """Give an adapter that may be seen here, or raise NotFound."""
        return selectors.adapter(public_id, tenants=self.tenants())

    def own(self, public_id: str) -> Adapter:
        """Give an adapter that may be changed here."""
        return self.adapter(public_id)


class InArea(AreaRequired, InConsole):
    """The same in a tenant's area: its own, and what is shared with it."""

    prefix = "area-"
    layout = "area/base.html"
    menu_entry = "area-adapters"

    def tenants(self) -> list[str] | None:
        """Give the area's tenant."""
        return [self.area.tenant.slug]

    def address(self, name: str, *parts: str) -> str:
        """Give the address of a page of this area."""
        return super().address(name, self.area.tenant.slug, *parts)

    def may(self, what: str) -> bool:
        """Members upload; tenant admins share and delete; pinning is for staff."""
        return what == "upload" or (what != "pin" and self.area.may_manage)

    def show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        """Answer in the area's frame."""
        return InConsole.show(self, template, status=status, **context)

    def own(self, public_id: str) -> Adapter:
        """Give an adapter of this tenant; one that is shared with it is not its to change."""
        adapter = self.adapter(public_id)
        if adapter.tenant_id != self.area.tenant.pk:
            raise PermissionDenied("It belongs to another tenant, which shares it with you.")
        return adapter


class AdapterList(InConsole, Listing):
    """All adapters with how far each is."""

    template_name = "adapters/list.html"
    fragment_name = "adapters/_list.html"
    nav_name = "adapters"
    title = "Adapters"
    api_path = "/api/v1/adapters/"
    filter_class = AdapterFilter
    row_sorts: ClassVar[dict[str, str]] = {
        "name": "adapter.name",
        "tenant": "adapter.tenant.slug",
        "model": "adapter.model.name",
        "status": "progress.code",
        "rank": "newest.rank",
        "size_bytes": "newest.size_bytes",
        "number": "newest.number",
        "last_used_at": "adapter.last_used_at",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        "tenant": "adapter.tenant.slug",
        "adapter": "adapter.name",
        "model": "adapter.model.name",
        "status": "progress.code",
        "loaded": "progress.loaded",
        "replicas": "progress.wanted",
        "said": "progress.said",
        "rank": "newest.rank",
        "size_bytes": "newest.size_bytes",
        "pinned": "adapter.pinned",
        "last_used_at": "adapter.last_used_at",
    }

    def queryset(self) -> Any:
        """Give the adapters that may be seen here."""
        return selectors.adapters(tenants=self.tenants())

    def rows(self, found: Any) -> Sequence[AdapterRow]:
        """Give them with where they are, troubled ones first."""
        order = {"failed": 0, "unplaced": 1, "degraded": 2, "stale": 3, "loading": 4}
        return sorted(adapter_rows(found), key=lambda r: order.get(r.progress.code, 9))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add what may be done here."""
        return super().get_context_data(**kwargs) | self.frame() | {
            "upload_address": self.address("adapter-upload"),
            "sharing": [] if self.prefix else sharing_by_model(),
        }  # fmt: skip


class AreaAdapters(InArea, AdapterList):
    """A tenant's adapters."""

    nav_name = "area-adapters"
    filter_class = AreaAdapterFilter


class AdapterPage(InConsole, Page):
    """One adapter: its versions, each replica, how to call it."""

    template_name = "adapters/detail.html"
    fragment_name = "adapters/_detail.html"
    nav_name = "adapters"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the adapter with where it is."""
        adapter = self.adapter(kwargs["public_id"])
        is_guest = self.tenants() is not None and adapter.tenant.slug not in (self.tenants() or ())
        return super().get_context_data(**kwargs) | self.frame() | {
            "title": adapter.name,
            "api_path": f"/api/v1/adapters/{adapter.public_id}/",
            "row": adapter_row(adapter),
            "is_guest": is_guest,
            "called": f"{adapter.tenant.slug}/{adapter.name}" if is_guest else adapter.name,
            "numbers": {version.pk: version.number for version in adapter.versions.all()},
            "edit_address": self.address("adapter-edit", adapter.public_id),
            "delete_address": self.address("adapter-delete", adapter.public_id),
            "usage_address": self.address("adapter-usage", adapter.public_id),
        }  # fmt: skip


class AreaAdapter(InArea, AdapterPage):
    """One of a tenant's adapters."""

    nav_name = "area-adapters"
