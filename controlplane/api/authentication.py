"""Who calls the API: a staff or tenant token beside the console's session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.tenants import keys, selectors, services
from controlplane.tenants.models import StaffToken, TenantToken

REALM = 'Bearer realm="signalbox"'


@dataclass(frozen=True, slots=True)
class TokenUser:
    """The caller behind a token: known, but no console user."""

    username: str
    is_authenticated: bool = True
    is_anonymous: bool = False
    is_active: bool = False  # no console user's rights

    def get_username(self) -> str:
        """Give the token's name, as Django asks a user for theirs."""
        return self.username


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer sbt-…` or `stt-…`, with the role the token was issued for."""

    def authenticate(self, request: Request) -> tuple[TokenUser, StaffToken | TenantToken] | None:
        """Give the caller behind a bearer token; None leaves the request to the session."""
        kind, _, given = get_authorization_header(request).partition(b" ")
        if kind.lower() != b"bearer":
            return None
        text = given.decode("latin-1").strip()
        if text.startswith(keys.TENANT_TOKEN):
            return self._of_tenant(text)
        token = selectors.staff_token(text)
        if token is None:
            raise AuthenticationFailed(
                "This staff token is unknown, expired or revoked: ask an admin for a new one."
            )
        services.book_token_use(token=token, now=timezone.now())
        return TokenUser(username=token.name), token

    def _of_tenant(self, text: str) -> tuple[TokenUser, TenantToken]:
        token = selectors.tenant_token(text)
        if token is None:
            raise AuthenticationFailed(
                "This tenant token is unknown, expired or revoked: issue a new one."
            )
        services.book_tenant_token_use(token=token, now=timezone.now())
        return TokenUser(username=f"{token.tenant.slug}/{token.name}"), token

    def authenticate_header(self, request: Request) -> str:
        """Give the challenge of a 401."""
        return REALM


class ApiTokenScheme(OpenApiAuthenticationExtension):
    """How the schema describes the token."""

    target_class = "controlplane.api.authentication.ApiTokenAuthentication"
    name = "staffToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Give the OpenAPI security scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A staff token, sbt-…, or a tenant's, stt-…",
        }
