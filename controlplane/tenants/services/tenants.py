"""Tenants: who calls models, with which priority and which models."""

from __future__ import annotations

from typing import Any, Final, TypedDict, Unpack

from django.db import IntegrityError, transaction

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants.models import Tenant
from controlplane.wake import waker

RESERVED: Final = frozenset({"new"})  # their addresses among the tenants' are other pages


class TenantFields(TypedDict, total=False):
    """What may be said of a tenant, at creation and later."""

    name: str
    priority: int  # 0 is served first, 9 last
    allowed_models: list[str]  # empty = all
    suspended: bool
    requests_per_minute: int | None  # over all agents together; None = unlimited
    tokens_per_minute: int | None
    concurrency: int | None
    limits_when_unreachable: str  # open or closed


@transaction.atomic
def create_tenant(
    *, slug: str, actor: Actor, reason: str, **fields: Unpack[TenantFields]
) -> Tenant:
    """Create a tenant; it can call nothing until it has a key."""
    if slug in RESERVED:
        raise Invalid(
            f"{slug!r} is the address of another page, /tenants/{slug}/: choose another slug.",
            field="slug",
        )
    tenant = Tenant(slug=slug, **{"name": slug, **fields})
    _check(tenant)
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"A tenant '{slug}' exists already.", field="slug") from error
    _record("tenant.create", slug, actor=actor, reason=reason, change=(None, _facts(tenant)))
    return tenant


@transaction.atomic
def update_tenant(
    *,
    slug: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[TenantFields],
) -> Tenant:
    """Change a tenant; agents obey it with the next table."""
    tenant = _get(slug)
    before = _facts(tenant)
    _check(Tenant(slug=slug, **{**before, **changes}))
    locking.change(
        tenant, changes, expected_version=expected_version, called=f"The tenant '{slug}'"
    )
    _record("tenant.update", slug, actor=actor, reason=reason, change=(before, _facts(tenant)))
    return tenant


@transaction.atomic
def delete_tenant(
    *, slug: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a tenant and all its keys."""
    tenant = _get(slug)
    before = _facts(tenant)
    locking.delete(tenant, expected_version=expected_version, called=f"The tenant '{slug}'")
    _record("tenant.delete", slug, actor=actor, reason=reason, change=(before, None))


def _get(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise NotFound(f"There is no tenant '{slug}'.")
    return tenant


def _check(tenant: Tenant) -> None:
    locking.check(tenant)
    models = tenant.allowed_models
    if not isinstance(models, list) or not all(isinstance(m, str) and m for m in models):
        raise Invalid("allowed_models is a list of model names.", field="allowed_models")


def _facts(tenant: Tenant) -> TenantFields:
    return {
        "name": tenant.name,
        "priority": tenant.priority,
        "allowed_models": tenant.allowed_models,
        "suspended": tenant.suspended,
        "requests_per_minute": tenant.requests_per_minute,
        "tokens_per_minute": tenant.tokens_per_minute,
        "concurrency": tenant.concurrency,
        "limits_when_unreachable": tenant.limits_when_unreachable,
    }


def _record(verb: str, slug: str, *, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    audit.record(
        actor=actor,
        verb=verb,
        target=("tenant", slug),
        reason=reason,
        change=change,
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
