"""Signing in: staff come to the console, members to their tenant; invited people set a password."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import LoginView, PasswordResetConfirmView
from django.urls import reverse

from controlplane.tenants.scope import scope_of
from controlplane.tenants.views.area import home_of


class SignIn(LoginView):
    """The one login page."""

    redirect_authenticated_user = True

    def get_success_url(self) -> str:
        """Give where they wanted to go; members who asked for the console come to their area."""
        wanted = super().get_success_url()
        home = home_of(scope_of(self.request.user))
        return home if home and wanted == reverse("overview") else wanted


class Welcome(PasswordResetConfirmView):
    """Where an invited person sets their password, once, and is signed in."""

    template_name = "registration/welcome.html"
    post_reset_login = True
    post_reset_login_backend = "django.contrib.auth.backends.ModelBackend"

    def get_success_url(self) -> str:
        """Give the way into their area."""
        return home_of(scope_of(self.user)) or reverse("overview")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Name the page."""
        return super().get_context_data(**kwargs) | {"title": "Welcome"}
