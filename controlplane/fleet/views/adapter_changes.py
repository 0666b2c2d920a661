"""Changes of adapters, in the console and in a tenant's own area: upload, pin, share, delete."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.catalog import selectors, services
from controlplane.catalog.models import Adapter
from controlplane.catalog.parsers import incoming
from controlplane.console import actions
from controlplane.console.mixins import back_to, is_fragment, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.fleet.adapter_forms import EditForm, UploadForm
from controlplane.fleet.adapter_rows import adapter_row
from controlplane.fleet.views.adapters import InArea, InConsole
from controlplane.tenants.models import Tenant, TenantRole


class UploadAdapter(InConsole):
    """Take an upload in: the limits first, then the checks, then where it is loaded."""

    required_role: ClassVar[str] = "operator"

    def choices(self) -> list[Tenant]:
        """Give the tenants it may be for."""
        return list(Tenant.objects.order_by("slug"))

    def form(self, data: Any) -> UploadForm:
        """Give the form for whoever asks."""
        return UploadForm(data, tenants=self.choices(), pools=True)

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        """Ask for it."""
        return self._ask(self.form(None))

    def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        """Read, check and keep it; say what was wrong, check by check."""
        form = self.form(request.POST)
        if not form.is_valid():
            return self._ask(form, status=400)
        given = form.cleaned_data
        reason = given.pop("reason")
        actor = Actor(request.user.get_username())
        try:
            with services.received(
                wanted=services.Wanted(**given), uploaded=incoming(request.FILES), actor=actor
            ) as upload:
                adapter = services.add_version(
                    upload=upload, actor=actor, reason=reason or actions.NO_REASON
                )
        except ProblemError as problem:
            return self._refused(form, problem)
        requested(request, f"{adapter.name} uploaded.", revision=fleet_revision())
        return back_to(request, self.address("adapter", adapter.public_id))

    def _refused(self, form: UploadForm, problem: ProblemError) -> HttpResponse:
        """Tell it where the script put the upload, or on the page without one."""
        if is_fragment(self.request):
            context = {"problem": problem}
            return self.show("adapters/_refused.html", status=problem.status, **context)
        return self._ask(form, problem=problem, status=problem.status)

    def _ask(
        self, form: UploadForm, *, problem: ProblemError | None = None, status: int = 200
    ) -> HttpResponse:
        context = {
            "title": "Upload an adapter",
            "form": form,
            "problem": problem,
            "limit_bytes": settings.ADAPTER_LIMIT_BYTES,
            "tenant_bytes": settings.ADAPTER_TENANT_BYTES,
            "limits": self._limits(),
        }
        part = is_fragment(self.request) and self.request.method == "POST"
        template = "adapters/_refused.html" if part else "adapters/upload.html"
        return self.show(template, status=status, **context)

    def _limits(self) -> list[tuple[str, int]]:
        """Give each base model with the largest rank that one of its pools takes."""
        found = {}
        for tenant in self.choices():
            for model in selectors.model_names_for(tenant):
                if model not in found:
                    base = selectors.base_of(model=model, pool="", tenant=tenant.slug)
                    found[model] = base.max_rank
        return sorted(found.items())


class AreaUpload(InArea, UploadAdapter):
    """Upload an adapter of one's own tenant."""

    def choices(self) -> list[Tenant]:
        """Give the area's tenant."""
        return [self.area.tenant]


class EditAdapter(InConsole):
    """Pin an adapter, or share it with other tenants."""

    required_role: ClassVar[str] = "operator"

    def get(self, request: HttpRequest, public_id: str, **_: Any) -> HttpResponse:
        """Ask for it, as it is now."""
        adapter = self.own(public_id)
        slugs = " ".join(tenant.slug for tenant in adapter.shared_with.all())
        form = EditForm(initial={"pinned": adapter.pinned, "shared_with": slugs})
        return self._ask(adapter, form)

    def post(self, request: HttpRequest, public_id: str, **_: Any) -> HttpResponse:
        """Change it, if nobody did meanwhile."""
        adapter = self.own(public_id)
        form = self._form(request.POST)
        if not form.is_valid():
            return self._ask(adapter, form)
        given = form.cleaned_data
        try:
            services.update_adapter(
                public_id=public_id,
                pinned=given["pinned"] if "pinned" in form.fields else None,
                shared_with=given["shared_with"].split(),
                actor=Actor(request.user.get_username()),
                reason=given["reason"],
                expected_version=actions.expected_version(request),
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._ask(adapter, form)
        requested(request, f"{adapter.name} changed.", revision=fleet_revision())
        return back_to(request, self.address("adapter", public_id))

    def _form(self, data: Any) -> EditForm:
        form = EditForm(data)
        if not self.may("pin"):
            del form.fields["pinned"]
        return form

    def _ask(self, adapter: Adapter, form: EditForm) -> HttpResponse:
        if not self.may("pin"):
            form.fields.pop("pinned", None)
        home = self.address("adapter", adapter.public_id)
        return self.show(
            "adapters/edit.html", title=f"Change {adapter.name}", adapter=adapter, form=form,
            home=home,
        )  # fmt: skip


class AreaEditAdapter(InArea, EditAdapter):
    """Share an adapter of one's own tenant."""

    area_role = TenantRole.ADMIN


class DeleteAdapter(InConsole):
    """Take an adapter away for good, after its name was typed."""

    required_role: ClassVar[str] = "operator"

    def get(self, request: HttpRequest, public_id: str, **_: Any) -> HttpResponse:
        """Say what breaks and ask for the name."""
        return self._ask(self.own(public_id))

    def post(self, request: HttpRequest, public_id: str, **_: Any) -> HttpResponse:
        """Delete it if the name was typed right."""
        adapter = self.own(public_id)
        if adapter.deleted_at is not None:
            raise NotFound(f"{adapter.name} is deleted already.")
        if request.POST.get("typed", "").strip() != adapter.name:
            return self._ask(
                adapter, problem=f"Type {adapter.name} to delete it. Nothing was changed."
            )
        services.delete_adapter(
            public_id=public_id,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
        )
        requested(request, f"{adapter.name} deleted.", revision=fleet_revision())
        return back_to(request, self.address("adapters"))

    def _ask(self, adapter: Adapter, problem: str = "") -> HttpResponse:
        return self.show(
            "adapters/delete.html",
            title=f"Delete {adapter.name}",
            row=adapter_row(adapter),
            problem=problem,
            home=self.address("adapter", adapter.public_id),
        )


class AreaDeleteAdapter(InArea, DeleteAdapter):
    """Delete an adapter of one's own tenant."""

    area_role = TenantRole.ADMIN
