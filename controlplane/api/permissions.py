"""Roles on the API: viewsets say what an action needs, this class obeys."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.tenants.models import Role, TenantToken
from controlplane.tenants.scope import scope_of
from controlplane.tenants.selectors import is_at_least, role_of


class RolePermission(BasePermission):
    """Reads need a viewer; a write needs what its view names, and an admin if it names nothing.

    Members of tenants may use what a view's `tenant_roles` opens to them, within their tenants:
    the view finds these in `callers_tenants`, which is None for staff.
    """

    message = "Your role does not allow this."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Say whether the caller's role includes the one this action needs."""
        needed = needed_role(request.method or "", view)
        subject = request.auth if request.auth is not None else request.user
        role = None if isinstance(subject, TenantToken) else role_of(subject)
        if is_at_least(role, needed):
            view.callers_tenants = None
            return True
        if wanted := getattr(view, "tenant_roles", {}).get(getattr(view, "action", None)):
            view.callers_tenants = scope_of(subject).tenants_with(wanted)
            if view.callers_tenants:
                return True
        self.message = f"This needs the role {needed}; yours is {role.value if role else 'none'}."
        return False


def needed_role(method: str, view: Any) -> str:
    """Give the role an action needs."""
    action = getattr(view, "action", None)
    named = getattr(view, "required_roles", {}).get(action)
    if named:
        return str(named)
    if method in SAFE_METHODS:
        return Role.VIEWER.value
    return str(getattr(view, "required_role", Role.ADMIN.value))
