"""Tokens by which automation calls the API with a role: issued, shown once, revoked for good."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import back_to, requested
from controlplane.domain.errors import NotFound, ProblemError
from controlplane.tenants import selectors, services
from controlplane.tenants.forms import StaffTokenForm
from controlplane.tenants.models import StaffToken
from controlplane.tenants.views.staff import StaffAction


class IssueStaffToken(StaffAction):
    """Make a token; its text is in the answer and never again."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Ask for name, role, expiry and reason."""
        return self._form(StaffTokenForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        """Issue it and show its text."""
        form = StaffTokenForm(request.POST)
        if not form.is_valid():
            return self._form(form)
        try:
            token, text = services.issue_staff_token(
                actor=Actor(request.user.get_username()), **form.cleaned_data
            )
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self._form(form)
        response = self.show(
            "tenants/staff_token_issued.html", title="Token issued", token=token, plaintext=text
        )
        response["Cache-Control"] = "no-store"
        return response

    def _form(self, form: StaffTokenForm) -> HttpResponse:
        return self.show("tenants/staff_token_issue.html", title="Issue an API token", form=form)


class RevokeStaffToken(StaffAction):
    """End a token for good, after its name was typed."""

    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        """Say what breaks and ask for the name."""
        return self._ask(_token(name))

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Revoke it if the name was typed right."""
        token = _token(name)
        if request.POST.get("typed", "").strip() != name:
            return self._ask(token, problem=f"Type {name} to revoke it. Nothing was changed.")
        services.revoke_staff_token(
            name=name,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
        )
        requested(request, f"Token {name} revoked.")
        return back_to(request, reverse("staff"))

    def _ask(self, token: StaffToken, problem: str = "") -> HttpResponse:
        title = f"Revoke token {token.name}"
        return self.show(
            "tenants/staff_token_revoke.html", title=title, token=token, problem=problem
        )


def _token(name: str) -> StaffToken:
    found = selectors.staff_tokens().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no staff token '{name}'.")
    return found
