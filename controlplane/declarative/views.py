"""Configuration: download it, apply a file after a look at the difference."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from controlplane.audit.selectors import events, fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import RoleRequired, back_to, requested
from controlplane.declarative import document, services
from controlplane.declarative.download import file_answer
from controlplane.declarative.forms import ApplyForm
from controlplane.declarative.services import Plan
from controlplane.domain.errors import ProblemError

HISTORY_SHOWN = 10


class ConfigurationPage(RoleRequired):
    """A form for a file; then what it would do, confirmed with a reason."""

    required_role = "admin"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the form, and what was applied before."""
        return self._form(ApplyForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        """Show the difference, or apply the file once that was confirmed."""
        form = ApplyForm(request.POST, request.FILES)
        if not form.is_valid() or request.POST.get("step") == "edit":
            return self._form(form)
        if request.POST.get("step") == "apply":
            return self._apply(form)
        return self._review(form)

    def _review(self, form: ApplyForm) -> HttpResponse:
        try:
            plan = self._run(form, "a look at the difference", dry_run=True)
        except ProblemError as problem:
            form.add_error("yaml", problem.message)
            return self._form(form)
        return self._show("declarative/review.html", form=form, plan=plan, text=_text(form))

    def _apply(self, form: ApplyForm) -> HttpResponse:
        try:
            reason = actions.reason(self.request, required=True)
            plan = self._run(form, reason, expected=self.request.POST.get("expected"))
        except ProblemError as problem:
            form.add_error("yaml", f"Nothing was changed. {problem.message}")
            return self._form(form, status=problem.status)
        counts = ", ".join(f"{n} {act}d" for act, n in plan.counts.items() if n)
        said = f"Configuration applied: {counts or 'nothing to change'}."
        requested(self.request, said, revision=fleet_revision())
        return back_to(self.request, reverse("configuration"))

    def _run(
        self, form: ApplyForm, reason: str, *, dry_run: bool = False, expected: str | None = None
    ) -> Plan:
        who: Any = {"actor": Actor(self.request.user.get_username()), "reason": reason}
        remove = bool(form.cleaned_data["remove"])
        return services.apply(
            _text(form), who=who, dry_run=dry_run, remove=remove, expected=expected
        )

    def _form(self, form: ApplyForm, status: int = 200) -> HttpResponse:
        text = services.export_text()
        applied = events(target_kind="configuration").order_by("-id")[:HISTORY_SHOWN]
        return self._show(
            "declarative/configuration.html",
            status=status,
            form=form,
            digest=document.digest(text),
            size_bytes=len(text.encode()),
            applied=applied,
        )

    def _show(self, template: str, status: int = 200, **context: Any) -> HttpResponse:
        frame = {
            "title": "Configuration",
            "nav_name": "configuration",
            "api_path": "/api/v1/export/",
        }
        return render(self.request, template, frame | context, status=status)


def _text(form: ApplyForm) -> str:
    # Browsers send line ends as CR LF.
    return str(form.cleaned_data["yaml"]).replace("\r\n", "\n")


class Download(RoleRequired):
    """The configuration as a file."""

    required_role = "admin"

    def get(self, request: HttpRequest) -> HttpResponse:
        """Give it."""
        return file_answer()
