"""Who works with this console, with which role: invited, changed, taken away."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import Page, RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.tenants import selectors, services
from controlplane.tenants.forms import StaffForm
from controlplane.tenants.models import Role, StaffProfile, StaffToken
from controlplane.tenants.services import Invitation


class StaffPage(Page):
    """The console's users and their roles."""

    required_role = "admin"
    template_name = "tenants/staff.html"
    fragment_name = "tenants/_staff.html"
    nav_name = "staff"
    title = "Staff"
    api_path = "/api/v1/staff/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather them."""
        now = timezone.now()
        return super().get_context_data(**kwargs) | {
            "staff": selectors.staff(),
            "tokens": [(t, _standing(t, now)) for t in selectors.staff_tokens()],
        }


class StaffAction(RoleRequired):
    """What inviting and changing share."""

    required_role = "admin"

    def show(self, template: str, **context: Any) -> HttpResponse:
        """Answer in the dialog or as a page."""
        layout = "dialog.html" if in_dialog(self.request) else "base.html"
        return render(self.request, template, {"layout": layout, "nav_name": "staff", **context})

    def show_invitation(self, invitation: Invitation[StaffProfile]) -> HttpResponse:
        """Show the link that sets a password, this once."""
        response = self.show(
            "tenants/staff_invited.html",
            title=f"{invitation.given.user.get_username()} is {invitation.given.role}",
            profile=invitation.given,
            link=self.request.build_absolute_uri(invitation.path) if invitation.path else None,
        )
        response["Cache-Control"] = "no-store"
        return response


class InviteStaff(StaffAction):
    """Give somebody a role."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Ask who, and which."""
        return self._form(StaffForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        """Invite them; who is new gets a link."""
        form = StaffForm(request.POST)
        if not form.is_valid():
            return self._form(form)
        try:
            invitation = services.invite_staff(
                actor=Actor(request.user.get_username()), **form.cleaned_data
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(form)
        return self.show_invitation(invitation)

    def _form(self, form: StaffForm) -> HttpResponse:
        return self.show("tenants/staff_new.html", title="Invite staff", form=form)


class ChangeStaff(StaffAction):
    """Another role, a new invitation, or none any more."""

    def get(self, request: HttpRequest, username: str) -> HttpResponse:
        """Show the choices."""
        profile = _profile(username)
        return self.show(
            "tenants/staff_change.html",
            title=f"Change {username}",
            profile=profile,
            roles=Role.choices,
        )

    def post(self, request: HttpRequest, username: str) -> HttpResponse:
        """Carry one of them out."""
        user: User = _profile(username).user
        actor, reason = Actor(request.user.get_username()), actions.reason(request, required=True)
        step = request.POST.get("step")
        if step == "renew":
            return self.show_invitation(
                services.renew_staff_invitation(user=user, actor=actor, reason=reason)
            )
        if step == "remove":
            services.remove_role(user=user, actor=actor, reason=reason)
        else:
            role = request.POST.get("role", "")
            services.set_role(user=user, role=role, actor=actor, reason=reason)
        done = "has no role any more" if step == "remove" else "has another role"
        requested(request, f"{username} {done}.")
        return back_to(request, reverse("staff"))


def _standing(token: StaffToken, now: datetime) -> str:
    return "expired" if token.expires_at is not None and token.expires_at <= now else "active"


def _profile(username: str) -> StaffProfile:
    found = selectors.staff().filter(user__username=username).first()
    if found is None:
        raise NotFound(f"'{username}' has no role here.")
    return found
