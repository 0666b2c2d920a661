"""How every page behaves: who may see it, fragments that answer 204 without a change, actions."""

from __future__ import annotations

import hashlib
import re
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.views.generic import TemplateView, View

from controlplane.console import preferences
from controlplane.domain.errors import ProblemError

ROLES = ("viewer", "operator", "admin")
# A fresh token is masked anew in every answer: it is no change of the page.
_CSRF = re.compile(r'name="csrfmiddlewaretoken" value="[^"]*"')


def includes(role: str, wanted: str) -> bool:
    """Say whether a role includes another; each includes those before it."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(wanted)


def refusal(role: str | None, wanted: str) -> str:
    """Say why a role, or having none, is not enough, and who can change that."""
    if not role:
        return (
            "This is for the staff of Signalbox; you have no role there. An admin can give you one."
        )
    return f"This needs the role {wanted}; yours is {role}. An admin can change it."


class RoleRequired(View):
    """Lets only signed-in people with `required_role` in; sends others to the login page."""

    required_role: ClassVar[str] = "viewer"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Check who asks, then go on; a problem told by a service becomes its own page."""
        if not request.user.is_authenticated:
            return self._to_login(request)
        self.admit(request, **kwargs)
        try:
            return super().dispatch(request, *args, **kwargs)
        except ProblemError as problem:
            return problem_page(request, problem)

    def admit(self, request: HttpRequest, **kwargs: Any) -> None:
        """Let somebody signed in pass, or raise what they are told."""
        if not includes(str(request.role), self.required_role):  # type: ignore[attr-defined]
            raise PermissionDenied(refusal(request.role, self.required_role))  # type: ignore[attr-defined]

    def _to_login(self, request: HttpRequest) -> HttpResponse:
        answer = redirect_to_login(request.get_full_path())
        if is_fragment(request):  # a poll must not draw the login page into a table
            return HttpResponse(headers={"HX-Redirect": answer["Location"]})
        return answer


class Page(RoleRequired, TemplateView):
    """A console page. Its live part is `fragment_name`, polled at the page's own address."""

    fragment_name: ClassVar[str] = ""
    nav_name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    api_path: ClassVar[str] = ""  # the REST endpoint that tells the same

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer with the page, or with its live part for a poll."""
        context = self.get_context_data(**kwargs)
        if is_fragment(request) and self.fragment_name:
            return fragment(request, self.fragment_name, context)
        response = self.render_to_response(context)
        if request.GET.get("window") in preferences.WINDOWS:
            preferences.remember(response, "window", request.GET["window"])
        return response

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add what the frame shows of this page."""
        return super().get_context_data(
            nav_name=self.nav_name,
            title=self.title,
            api_path=self.api_path,
            fragment_name=self.fragment_name,
            **kwargs,
        )


class Action(RoleRequired):
    """Something that changes the world: a POST, then a page that shows what became of it."""

    http_method_names = ["post", "options"]
    required_role: ClassVar[str] = "operator"


def is_fragment(request: HttpRequest) -> bool:
    """Say whether htmx polls a page's live part."""
    return bool(getattr(request, "htmx", False)) and "dialog" not in str(request.htmx.target)  # type: ignore[attr-defined]


def in_dialog(request: HttpRequest) -> bool:
    """Say whether htmx wants the page's content for the dialog."""
    return bool(getattr(request, "htmx", False)) and not is_fragment(request)


def fragment(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Answer a poll: 204 when the reader already sees this, else the part with its digest."""
    body = render_to_string(template, context, request)
    seen = digest(body)
    if request.headers.get("X-Seen") == seen:
        return HttpResponse(status=204)
    return HttpResponse(body, headers={"X-Digest": seen, "Cache-Control": "no-store"})


def digest(body: str) -> str:
    """Give a short name for what a fragment shows."""
    return hashlib.blake2b(_CSRF.sub("", body).encode(), digest_size=12).hexdigest()


def problem_page(request: HttpRequest, problem: ProblemError) -> HttpResponse:
    """Say what went wrong, in the dialog if the request came from there."""
    template = "partials/problem_dialog.html" if in_dialog(request) else "problem.html"
    layout = "area/base.html" if hasattr(request, "area") else "base.html"
    return render(request, template, {"problem": problem, "layout": layout}, status=problem.status)


def requested(request: HttpRequest, text: str, *, revision: int | None = None) -> None:
    """Leave a notice for the next page; with a revision it follows the agents to it."""
    tags = f"follow-{revision}" if revision is not None else ""
    messages.success(request, text, extra_tags=tags)


def back_to(request: HttpRequest, url: str) -> HttpResponse:
    """Go to a page after an action, out of the dialog too."""
    if getattr(request, "htmx", False):
        return HttpResponse(status=204, headers={"HX-Redirect": url})
    return redirect(url)
