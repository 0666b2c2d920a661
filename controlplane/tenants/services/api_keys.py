"""Tenants' API keys: issued once, stored as a hash, revoked for good."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
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
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.wake import waker

LONGEST_OVERLAP = timedelta(days=30)
# Reports come every two seconds: a minute is fine enough for "last used", and spares writes.
KEY_USE_GRAIN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key with its text, which is nowhere stored and can be shown this once."""

    key: ApiKey
    plaintext: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.key.prefix}…)"


@transaction.atomic
def issue_key(
    *, tenant: str, name: str, actor: Actor, reason: str, expires_at: datetime | None = None
) -> IssuedKey:
    """Give a tenant (by slug) a new key; its name is free again once it is revoked."""
    owner = Tenant.objects.filter(slug=tenant).first()
    if owner is None:
        raise NotFound(f"There is no tenant '{tenant}'.", field="tenant")
    _check_expiry(expires_at)
    secret = keys.make(keys.API_KEY)
    key = ApiKey(
        tenant=owner,
        public_id=f"key-{secrets.token_hex(6)}",
        name=name,
        prefix=secret.prefix,
        sha256=secret.sha256,
        created_by=actor.name,
        expires_at=expires_at,
    )
    locking.check(key)
    _insert(key, tenant)
    _record("api-key.issue", key, actor=actor, reason=reason, change=(None, _facts(key)))
    return IssuedKey(key=key, plaintext=secret.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKey:
    """What is known of a key without its text, as a file of the configuration keeps it."""

    public_id: str
    tenant: str  # slug
    name: str
    prefix: str
    sha256: str
    expires_at: datetime | None = None


@transaction.atomic
def restore_key(*, kept: KeptKey, actor: Actor, reason: str) -> ApiKey:
    """Take a key in by its hash, so that clients go on with the text they have.

    Raises:
        Conflict: its name, id or hash is taken; a revoked key does not come back.
        Invalid: it has no hash of 64 hex digits, or no id of ours.
        NotFound: there is no such tenant.
    """
    owner = Tenant.objects.filter(slug=kept.tenant).first()
    if owner is None:
        raise NotFound(f"There is no tenant '{kept.tenant}'.", field="tenant")
    if not re.fullmatch(r"[0-9a-f]{64}", kept.sha256):
        raise Invalid("sha256 has 64 hex digits in lower case.", field="sha256")
    if not re.fullmatch(r"key-[0-9A-Za-z-]{1,28}", kept.public_id):
        raise Invalid("id begins with 'key-' and has at most 32 letters and digits.", field="id")
    if ApiKey.objects.filter(Q(public_id=kept.public_id) | Q(sha256=kept.sha256)).exists():
        raise Conflict(
            f"Key '{kept.public_id}' is known already, in use or revoked: a revoked key does not"
            " come back.",
            field="sha256",
        )
    key = ApiKey(
        tenant=owner,
        public_id=kept.public_id,
        name=kept.name,
        prefix=kept.prefix,
        sha256=kept.sha256,
        created_by=actor.name,
        expires_at=kept.expires_at,
    )
    locking.check(key)
    _insert(key, kept.tenant)
    _record("api-key.restore", key, actor=actor, reason=reason, change=(None, _facts(key)))
    return key


@transaction.atomic
def rotate_key(
    *, public_id: str, overlap: timedelta, actor: Actor, reason: str, tenant: str | None = None
) -> IssuedKey:
    """Issue a successor of a key; the old one goes on for `overlap`, then agents refuse it.

    The successor has the next free name (`batch` → `batch-2`) and the old key's expiry, if that
    is after the overlap; else it never expires.

    Raises:
        Invalid: for an overlap below zero or above a month.
        Conflict: the key works no more, so nothing is left to overlap with.
    """
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise Invalid("overlap is 0 to 720 hours.", field="overlap_hours")
    old = _live_key(public_id, tenant)
    ends_at = timezone.now() + overlap
    keeps_expiry = old.expires_at is not None and old.expires_at > ends_at
    issued = issue_key(
        tenant=old.tenant.slug,
        name=_next_name(old),
        actor=actor,
        reason=reason or f"rotates {old.name}",
        expires_at=old.expires_at if keeps_expiry else None,
    )
    before = _facts(old)
    if old.expires_at is None or old.expires_at > ends_at:
        old.expires_at = ends_at
        old.save(update_fields=["expires_at"])
    _record("api-key.rotate", old, actor=actor, reason=reason, change=(before, _facts(old)))
    return issued


def _live_key(public_id: str, tenant: str | None) -> ApiKey:
    found = ApiKey.objects.select_related("tenant").filter(public_id=public_id)
    key = (found if tenant is None else found.filter(tenant__slug=tenant)).first()
    if key is None:
        raise NotFound(f"There is no API key '{public_id}'.")
    is_over = key.expires_at is not None and key.expires_at <= timezone.now()
    if key.revoked_at is not None or is_over:
        raise Conflict(f"The key '{key.name}' works no more: issue a new one.", code="key_over")
    return key


def _next_name(key: ApiKey) -> str:
    """Give the first free name of the kind `batch-2`; names of revoked keys are free."""
    stem = re.sub(r"-\d+\Z", "", key.name)[:58]
    taken = set(
        ApiKey.objects.filter(tenant=key.tenant, revoked_at__isnull=True).values_list(
            "name", flat=True
        )
    )
    return next(name for n in itertools.count(2) if (name := f"{stem}-{n}") not in taken)


def book_key_use(uses: Mapping[str, datetime]) -> None:
    """Remember when keys (by public id) were last used; older news change nothing."""
    for public_id, at in sorted(uses.items()):
        older = Q(last_used_at__isnull=True) | Q(last_used_at__lt=at - KEY_USE_GRAIN)
        ApiKey.objects.filter(older, public_id=public_id).update(last_used_at=at)


@transaction.atomic
def revoke_key(*, public_id: str, actor: Actor, reason: str) -> ApiKey:
    """End a key for good; agents refuse it with the next table. Revoking twice changes nothing."""
    key = ApiKey.objects.select_related("tenant").filter(public_id=public_id).first()
    if key is None:
        raise NotFound(f"There is no API key '{public_id}'.")
    before = _facts(key)
    live = ApiKey.objects.filter(pk=key.pk, revoked_at__isnull=True)
    if live.update(revoked_at=timezone.now()):
        key.refresh_from_db(fields=["revoked_at"])
        _record("api-key.revoke", key, actor=actor, reason=reason, change=(before, _facts(key)))
    else:
        key.refresh_from_db(fields=["revoked_at"])
    return key


def _insert(key: ApiKey, tenant: str) -> None:
    try:
        with transaction.atomic():
            key.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            f"The tenant '{tenant}' has a live key '{key.name}' already: "
            "take another name, or revoke that one first.",
            field="name",
        ) from error


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid("expires_at is over already: name a time to come.", field="expires_at")


def _facts(key: ApiKey) -> dict[str, Any]:
    return {
        "tenant": key.tenant.slug,
        "name": key.name,
        "prefix": key.prefix,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


def _record(verb: str, key: ApiKey, *, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    audit.record(
        actor=actor,
        verb=verb,
        target=("api-key", key.public_id),
        reason=reason,
        change=change,
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
