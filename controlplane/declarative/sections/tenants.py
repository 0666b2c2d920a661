"""Tenants with their limits, and their keys by hash: clients go on with the keys they have."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain.errors import Conflict
from controlplane.tenants import services
from controlplane.tenants.models import ApiKey, Tenant


class TenantEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A customer or team that calls models."""

    slug: str
    name: str
    priority: int = 5
    allowed_models: list[str] = []
    suspended: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    limits_when_unreachable: str = "open"

    KEY: ClassVar[tuple[str, ...]] = ("slug",)


def _tenants() -> list[TenantEntry]:
    names = TenantEntry.__struct_fields__
    return [TenantEntry(**{n: getattr(t, n) for n in names}) for t in Tenant.objects.all()]


TENANTS = Section(
    name="tenants",
    entry=TenantEntry,
    what="tenant",
    read=_tenants,
    create=lambda e, who: services.create_tenant(**e.fields(), **who),
    update=lambda old, e, who: services.update_tenant(**e.fields(), **who),
    remove=lambda e, who: services.delete_tenant(slug=e.slug, **who),
)


class ApiKeyEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that works: its SHA-256, from which the key cannot be made."""

    id: str
    tenant: str
    name: str
    prefix: str
    sha256: str
    expires_at: datetime | None = None

    KEY: ClassVar[tuple[str, ...]] = ("id",)


def _keys() -> list[ApiKeyEntry]:
    rows = ApiKey.objects.select_related("tenant").filter(revoked_at__isnull=True)
    return [
        ApiKeyEntry(
            id=k.public_id,
            tenant=k.tenant.slug,
            name=k.name,
            prefix=k.prefix,
            sha256=k.sha256,
            expires_at=k.expires_at,
        )
        for k in rows
    ]


def _restore(entry: ApiKeyEntry, who: Who) -> None:
    kept = services.KeptKey(
        public_id=entry.id,
        tenant=entry.tenant,
        name=entry.name,
        prefix=entry.prefix,
        sha256=entry.sha256,
        expires_at=entry.expires_at,
    )
    services.restore_key(kept=kept, **who)


def _refuse(old: ApiKeyEntry, entry: ApiKeyEntry, who: Who) -> None:
    raise Conflict(f"Key {entry.id} cannot change: revoke it and issue another.", field="sha256")


API_KEYS = Section(
    name="api_keys",
    entry=ApiKeyEntry,
    what="API key",
    read=_keys,
    create=_restore,
    update=_refuse,
    remove=lambda e, who: services.revoke_key(public_id=e.id, **who),
)
