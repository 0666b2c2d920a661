"""Reads of tenants, their keys, and what staff may do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.contrib.auth import get_user_model
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from controlplane.domain import quota_use
from controlplane.domain.errors import NotFound
from controlplane.domain.fleet_snapshot import TenantRow
from controlplane.domain.quota_use import LimitUse
from controlplane.domain.quotas import Ledger
from controlplane.domain.tables import tenant_limits
from controlplane.tenants import keys
from controlplane.tenants.models import (
    ApiKey,
    LimitLedger,
    Membership,
    Role,
    StaffProfile,
    StaffToken,
    Tenant,
    TenantToken,
)

_RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def role_of(subject: Any) -> Role | None:
    """Give the role of a console user or of a staff token; None for everybody else."""
    if isinstance(subject, StaffToken):
        return None if is_over(subject.expires_at) else Role(subject.role)
    if not getattr(subject, "is_active", False):
        return None
    if subject.is_superuser:
        return Role.ADMIN
    profile = StaffProfile.objects.filter(user_id=subject.pk).first()
    return Role(profile.role) if profile else None


def is_at_least(role: Role | str | None, wanted: Role | str) -> bool:
    """Say whether `role` includes `wanted`; each role includes the ones below it."""
    return role is not None and _RANK[Role(role)] >= _RANK[Role(wanted)]


def staff_token(text: str) -> StaffToken | None:
    """Give the valid staff token with this text."""
    token = StaffToken.objects.filter(sha256=keys.digest(text)).first()
    return None if token is None or is_over(token.expires_at) else token


def tenant_token(text: str) -> TenantToken | None:
    """Give the valid token of a tenant with this text."""
    found = TenantToken.objects.select_related("tenant").filter(sha256=keys.digest(text)).first()
    return None if found is None or is_over(found.expires_at) else found


def tenant_tokens(*, tenant: str | None = None) -> QuerySet[TenantToken]:
    """Give tenants' tokens; all, or one tenant's."""
    found = TenantToken.objects.select_related("tenant").order_by("tenant__slug", "name")
    return found if tenant is None else found.filter(tenant__slug=tenant)


def memberships(*, tenant: str | None = None) -> QuerySet[Membership]:
    """Give who belongs to tenants; to all, or to one."""
    found = Membership.objects.select_related("tenant", "user").order_by(
        "tenant__slug", "user__username"
    )
    return found if tenant is None else found.filter(tenant__slug=tenant)


def tenants() -> QuerySet[Tenant]:
    """Give tenants with `live_keys`, how many of their keys work."""
    return Tenant.objects.annotate(
        live_keys=Count("api_keys", filter=_live(timezone.now(), "api_keys__"))
    ).order_by("slug")


def tenant(slug: str) -> Tenant:
    """Give one tenant with the same addition, or raise NotFound."""
    found = tenants().filter(slug=slug).first()
    if found is None:
        raise NotFound(f"There is no tenant '{slug}'.")
    return found


def api_keys(*, tenant: str | None = None, live_only: bool = False) -> QuerySet[ApiKey]:
    """Give API keys with their tenants; all, or one tenant's, or those that work."""
    found = ApiKey.objects.select_related("tenant").order_by("tenant__slug", "name", "-id")
    if tenant is not None:
        found = found.filter(tenant__slug=tenant)
    return found.filter(_live(timezone.now())) if live_only else found


def tenant_row(tenant: Tenant) -> TenantRow:
    """Give a tenant as the compiler of tables reads it."""
    return TenantRow(
        slug=tenant.slug,
        priority=tenant.priority,
        models=tenant.allowed_models,
        suspended=tenant.suspended,
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrency=tenant.concurrency,
        when_unreachable=tenant.limits_when_unreachable,
    )


def ledger(row: LimitLedger) -> Ledger:
    """Read who holds what of a tenant's limits."""
    return msgspec.convert(row.state, Ledger)


def limit_use(tenant: Tenant, *, now: float) -> LimitUse:
    """Give what agents hold and what is left of a tenant's limits, as of now (Unix seconds)."""
    row = getattr(tenant, "limitledger", None)
    limits = tenant_limits(tenant_row(tenant))
    return quota_use.use(ledger(row) if row else Ledger(), limits, now)


def staff_tokens() -> QuerySet[StaffToken]:
    """Give the tokens of automation, by name; their texts are not known."""
    return StaffToken.objects.order_by("name")


def staff() -> QuerySet[StaffProfile]:
    """Give the console users who have a role."""
    return StaffProfile.objects.select_related("user").order_by("user__username")


def other_admins(user_id: int) -> bool:
    """Say whether an active admin would remain without this user."""
    admins = Q(is_superuser=True) | Q(staff_profile__role=Role.ADMIN)
    users = get_user_model().objects.filter(admins, is_active=True)
    return users.exclude(pk=user_id).exists()


def _live(now: datetime, prefix: str = "") -> Q:
    unexpired = Q(**{f"{prefix}expires_at__isnull": True}) | Q(**{f"{prefix}expires_at__gt": now})
    return unexpired & Q(**{f"{prefix}revoked_at__isnull": True, f"{prefix}id__isnull": False})


def is_over(moment: datetime | None) -> bool:
    """Say whether a token that works until a moment works no more; None: it has no end."""
    return moment is not None and moment <= timezone.now()
