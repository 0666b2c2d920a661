"""Tokens by which a tenant's automation calls the REST API, within that tenant only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants import keys
from controlplane.tenants.models import Tenant, TenantRole, TenantToken

TOKEN_USE_GRAIN = timedelta(minutes=1)


@transaction.atomic
def issue_tenant_token(
    *,
    tenant: str,
    name: str,
    actor: Actor,
    reason: str,
    role: str = TenantRole.MEMBER,
    expires_at: datetime | None = None,
) -> tuple[TenantToken, str]:
    """Make a token that acts in one tenant with a role; its text is given here and never again."""
    owner = Tenant.objects.filter(slug=tenant).first()
    if owner is None:
        raise NotFound(f"There is no tenant '{tenant}'.", field="tenant")
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid("expires_at is over already: name a time to come.", field="expires_at")
    secret = keys.make(keys.TENANT_TOKEN)
    token = TenantToken(
        tenant=owner,
        name=name,
        role=role,
        sha256=secret.sha256,
        created_by=actor.name,
        expires_at=expires_at,
    )
    locking.check(token)
    try:
        with transaction.atomic():
            token.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            f"The tenant '{tenant}' has a token '{name}' already.", field="name"
        ) from error
    _record("tenant-token.issue", token, actor, reason, (None, {"role": token.role}))
    return token, secret.text


@transaction.atomic
def revoke_tenant_token(*, token_id: int, actor: Actor, reason: str) -> None:
    """End a tenant's token at once."""
    token = TenantToken.objects.select_related("tenant").filter(pk=token_id).first()
    if token is None:
        raise NotFound(f"There is no tenant token {token_id}.")
    _record("tenant-token.revoke", token, actor, reason, ({"role": token.role}, None))
    token.delete()


def book_tenant_token_use(*, token: TenantToken, now: datetime) -> None:
    """Remember that a token was used, at most once a minute."""
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - TOKEN_USE_GRAIN)
    if token.last_used_at is None or now - token.last_used_at >= TOKEN_USE_GRAIN:
        TenantToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)


def _record(
    verb: str, token: TenantToken, actor: Actor, reason: str, change: tuple[Any, Any]
) -> None:
    target = ("tenant-token", f"{token.tenant.slug}/{token.name}")
    audit.record(actor=actor, verb=verb, target=target, reason=reason, change=change)
