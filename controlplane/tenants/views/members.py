"""Members of a tenant: invited, given another role, removed; and as the tenant sees them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import back_to, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.tenants import selectors, services
from controlplane.tenants.forms import MemberForm
from controlplane.tenants.models import Membership, TenantRole
from controlplane.tenants.services import Invitation
from controlplane.tenants.views.area import AreaPage
from controlplane.tenants.views.limits import TenantChange


class MemberAction(TenantChange):
    """What inviting and changing share."""

    def show_invitation(self, invitation: Invitation[Membership]) -> HttpResponse:
        """Show the link that sets a password, this once."""
        link = self.request.build_absolute_uri(invitation.path) if invitation.path else None
        response = self.show(
            "tenants/member_invited.html",
            title=f"{invitation.given.user.get_username()} invited",
            membership=invitation.given,
            link=link,
        )
        response["Cache-Control"] = "no-store"
        return response


class InviteMember(MemberAction):
    """Make somebody a member of a tenant."""

    def get(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Ask who, and as what."""
        return self._form(slug, MemberForm())

    def post(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Invite them; who is new gets a link."""
        form = MemberForm(request.POST)
        if not form.is_valid():
            return self._form(slug, form)
        try:
            invitation = services.invite_member(
                tenant=slug, actor=Actor(request.user.get_username()), **form.cleaned_data
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(slug, form)
        return self.show_invitation(invitation)

    def _form(self, slug: str, form: MemberForm) -> HttpResponse:
        tenant = selectors.tenant(slug)
        title = f"Invite somebody to {tenant.name}"
        return self.show("tenants/member_new.html", title=title, tenant=tenant, form=form)


class ChangeMember(MemberAction):
    """Another role, a new invitation, or removal."""

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the choices."""
        return self._form(self._member(pk))

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Carry one of them out."""
        member = self._member(pk)
        actor, reason = Actor(request.user.get_username()), actions.reason(request, required=True)
        step = request.POST.get("step")
        if step == "renew":
            return self.show_invitation(
                services.renew_invitation(membership_id=pk, actor=actor, reason=reason)
            )
        if step == "remove":
            services.remove_member(membership_id=pk, actor=actor, reason=reason)
        else:
            role = request.POST.get("role", "")
            services.set_member_role(membership_id=pk, role=role, actor=actor, reason=reason)
        done = "removed" if step == "remove" else "changed"
        requested(request, f"Member {member.user.get_username()} {done}.")
        return back_to(request, reverse("tenant", args=[member.tenant.slug]))

    def _member(self, pk: int) -> Membership:
        found = selectors.memberships().filter(pk=pk).first()
        if found is None:
            raise NotFound(f"There is no membership {pk}.")
        return found

    def _form(self, member: Membership) -> HttpResponse:
        return self.show(
            "tenants/member.html",
            title=f"Member {member.user.get_username()}",
            membership=member,
            roles=TenantRole.choices,
        )


class AreaMembers(AreaPage):
    """Who else belongs to the tenant."""

    template_name = "area/members.html"
    fragment_name = "area/_members.html"
    nav_name = "area-members"
    title = "Members"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the members."""
        slug = self.area.tenant.slug
        return super().get_context_data(**kwargs) | {
            "api_path": f"/api/v1/memberships/?tenant={slug}",
            "members": selectors.memberships(tenant=slug),
        }
