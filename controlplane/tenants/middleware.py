"""Puts the signed-in user's role on each request, looked up once and only when asked for."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from controlplane.tenants import selectors

Handler = Callable[[HttpRequest], HttpResponse]


def role_middleware(get_response: Handler) -> Handler:
    """Set `request.role` to "viewer", "operator", "admin" or ""."""

    def handle(request: HttpRequest) -> HttpResponse:
        request.role = SimpleLazyObject(  # type: ignore[attr-defined]
            lambda: str(selectors.role_of(request.user) or "")
        )
        return get_response(request)

    return handle
