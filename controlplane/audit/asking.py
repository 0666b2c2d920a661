"""What simple dialogs share: a form that asks why, then a service, then back to the page."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console.mixins import RoleRequired, back_to, in_dialog, requested
from controlplane.domain.errors import ProblemError


class Asking(RoleRequired):
    """Ask for what a change needs, and make it; a refusal is told beside its field."""

    required_role = "operator"
    template: ClassVar[str] = "ask.html"
    nav_name: ClassVar[str] = "alerts"
    title: ClassVar[str] = ""
    explained: ClassVar[str] = ""
    button: ClassVar[str] = ""
    is_danger: ClassVar[bool] = False
    follows: ClassVar[bool] = False  # until agents obey the change

    def title_for(self, **address: Any) -> str:
        """Give the title; by default the same for whatever is changed."""
        return self.title

    def form(self, data: Any, **address: Any) -> forms.Form:
        """Give the form, filled from the request if there is one."""
        raise NotImplementedError

    def change(self, form: Any, who: dict[str, Any], **address: Any) -> str:
        """Make the change and say what was done."""
        raise NotImplementedError

    def back(self, **address: Any) -> str:
        """Give the page to go to."""
        raise NotImplementedError

    def get(self, request: HttpRequest, **address: Any) -> HttpResponse:
        """Show the form."""
        return self.show(self.form(None, **address), **address)

    def post(self, request: HttpRequest, **address: Any) -> HttpResponse:
        """Make the change, or show what is wrong with it."""
        form = self.form(request.POST, **address)
        if not form.is_valid():
            return self.show(form, **address)
        who = {
            "actor": Actor(request.user.get_username()),
            "reason": form.cleaned_data["reason"],
        }
        try:
            said = self.change(form, who, **address)
        except ProblemError as problem:
            form.add_error(problem.field if problem.field in form.fields else None, problem.message)
            return self.show(form, **address)
        requested(request, said, revision=fleet_revision() if self.follows else None)
        return back_to(request, self.back(**address))

    def show(self, form: forms.Form, **address: Any) -> HttpResponse:
        """Answer with the form in the dialog or as a page."""
        context = {
            "layout": "dialog.html" if in_dialog(self.request) else "base.html",
            "nav_name": self.nav_name,
            "title": self.title_for(**address),
            "explained": self.explained,
            "button": self.button,
            "is_danger": self.is_danger,
            "form": form,
            "back": self.back(**address),
        }
        return render(self.request, self.template, context)
