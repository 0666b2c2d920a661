"""Whose things a caller may see: staff every tenant's, everybody else their own tenants'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.tenants import selectors
from controlplane.tenants.models import Membership, Role, StaffToken, TenantRole, TenantToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A caller's staff role, if any, and their role in each tenant they belong to, by slug."""

    staff: Role | None = None
    tenants: Mapping[str, TenantRole] = field(default_factory=dict)

    def role_in(self, tenant: str) -> TenantRole | None:
        """Give the role in a tenant's area; staff may look, operators and admins may act."""
        if selectors.is_at_least(self.staff, Role.OPERATOR):
            return TenantRole.ADMIN
        own = self.tenants.get(tenant)
        return own or (TenantRole.MEMBER if self.staff else None)

    def tenants_with(self, wanted: TenantRole | str) -> frozenset[str]:
        """Give the tenants in which the caller has at least this role by membership or token."""
        return frozenset(t for t, role in self.tenants.items() if includes(role, wanted))


def includes(role: TenantRole | None, wanted: TenantRole | str) -> bool:
    """Say whether a role in a tenant includes another: an admin is a member too."""
    return role is TenantRole.ADMIN or (role is not None and role == wanted)


def scope_of(subject: Any) -> Scope:
    """Give the scope of a console user, of a staff token or of a tenant's token."""
    if isinstance(subject, TenantToken):
        if selectors.is_over(subject.expires_at):
            return Scope()
        return Scope(tenants={subject.tenant.slug: TenantRole(subject.role)})
    if isinstance(subject, StaffToken) or not getattr(subject, "is_active", False):
        return Scope(staff=selectors.role_of(subject))
    rows = Membership.objects.filter(user_id=subject.pk).values_list("tenant__slug", "role")
    return Scope(
        staff=selectors.role_of(subject),
        tenants={slug: TenantRole(role) for slug, role in rows},
    )
