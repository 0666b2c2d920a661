"""Adapters: taking uploads in, sharing, pinning and deleting them, and what the loop does to them.

Each change first records itself, which locks the fleet revision: so changes of adapters come one
after the other, and what is checked after that line stays true until the commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Q, Sum
from django.utils import timezone

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.catalog import selectors, uploads
from controlplane.catalog.models import Adapter, AdapterVersion
from controlplane.catalog.uploads import Incoming, Staged
from controlplane.domain import adapters
from controlplane.domain.adapters import AdapterRejected, Check, Facts
from controlplane.domain.errors import Conflict, Invalid, NotFound, TooLarge
from controlplane.tenants.models import Tenant
from controlplane.wake import waker

State = AdapterVersion.State
# Reports come every two seconds: this is fine enough for "least recently used", and spares writes.
USE_GRAIN: Final = timedelta(seconds=10)
LIVE: Final = (State.INCOMING, State.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an uploader asks for."""

    tenant: str
    name: str
    model: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """An upload that passed every check and lies on disk, not kept yet."""

    wanted: Wanted
    model: str
    digest: str
    staged: Staged
    facts: Facts
    checks: tuple[Check, ...]


@contextmanager
def received(*, wanted: Wanted, uploaded: Sequence[Incoming], actor: Actor) -> Iterator[Received]:
    """Read and check an upload, outside any transaction: it may take minutes.

    What is on disk is gone when the block ends, unless `add_version` kept it.

    Raises:
        AdapterRejected: with every check; the refusal is in the audit log.
        Conflict, Invalid, NotFound: about the name, the model or the tenant.
        TooLarge: above the limit of one adapter or of the tenant.
    """
    adapters.checked_name(wanted.name)
    base = selectors.base_of(model=wanted.model, pool=wanted.pool, tenant=wanted.tenant)
    limit = min(settings.ADAPTER_LIMIT_BYTES, _left_bytes(wanted.tenant))
    try:
        with uploads.staged(uploaded, limit_bytes=limit) as staged:
            verdict = adapters.check_adapter(staged.package, base)
            yield Received(
                wanted=wanted,
                model=base.model,
                digest=adapters.digest_of(staged.files),
                staged=staged,
                facts=verdict.raise_if_rejected(),
                checks=verdict.checks,
            )
    except AdapterRejected as refused:
        with transaction.atomic():
            audit.record(
                actor=actor,
                verb="adapter.refuse",
                target=("adapter", f"{wanted.tenant}/{wanted.name}"),
                reason=refused.message[:500],
            )
        raise


@transaction.atomic
def add_version(*, upload: Received, actor: Actor, reason: str) -> Adapter:
    """Keep an upload: as a new adapter, or as the next version of the one of that name.

    The first version is active at once; a later one when it is loaded.
    """
    wanted = upload.wanted
    _record("adapter.upload", f"{wanted.tenant}/{wanted.name}", actor, reason,
            (None, _told(upload)))  # fmt: skip
    if _left_bytes(wanted.tenant) < upload.staged.size_bytes:
        raise TooLarge(_quota_text(wanted.tenant))
    adapter = _named(wanted, upload.model, actor)
    live = list(adapter.versions.filter(state__in=LIVE))
    same = next((version for version in live if version.digest == upload.digest), None)
    if same is not None:
        raise Conflict(
            f"{wanted.name} has this content already, as version {same.number}.", code="exists"
        )
    adapter.versions.filter(state=State.INCOMING).update(state=State.RETIRED)
    is_first = not any(version.state == State.ACTIVE for version in live)
    _insert(adapter, upload, State.ACTIVE if is_first else State.INCOMING, actor)
    uploads.keep(upload.staged, upload.digest)
    return adapter


def _named(wanted: Wanted, model: str, actor: Actor) -> Adapter:
    """Give the adapter of this name, made if there is none.

    Raises:
        Conflict: when the name means something else already.
    """
    tenant = _tenant(wanted.tenant)
    live = Adapter.objects.filter(tenant=tenant, deleted_at__isnull=True)
    found = live.filter(name__iexact=wanted.name).select_related("model").first()
    if found is None:
        if live.count() >= settings.ADAPTER_TENANT_COUNT:
            raise Conflict(
                f"The tenant has {settings.ADAPTER_TENANT_COUNT} adapters, the most it may have: "
                "delete one first.",
                code="too_many",
            )
        _check_free(wanted)
        return Adapter.objects.create(
            public_id=f"adp-{secrets.token_hex(6)}",
            tenant=tenant,
            name=wanted.name,
            model=selectors.model(model),
            created_by=actor.name,
        )
    if found.name != wanted.name:
        raise Conflict(
            f"There is an adapter {found.name!r}: a name that differs by letter case alone would "
            "be taken for it.",
            field="name",
        )
    if found.model.name != model:
        raise Conflict(
            f"{found.name} is an adapter of {found.model.name}: take another name, or delete it.",
            field="model",
        )
    return found


def _check_free(wanted: Wanted) -> None:
    names = {wanted.name.casefold(), f"{wanted.tenant}/{wanted.name}".casefold()}
    for taken, model in selectors.names_taken().items():
        if taken.casefold() in names:
            raise Conflict(f"'{taken}' means the model '{model}': take another name.", field="name")


def _insert(adapter: Adapter, upload: Received, state: str, actor: Actor) -> None:
    newest = adapter.versions.aggregate(newest=Max("number"))["newest"] or 0
    facts = upload.facts
    AdapterVersion.objects.create(
        adapter=adapter,
        number=newest + 1,
        state=state,
        digest=upload.digest,
        served_name=adapters.served_name(
            tenant=adapter.tenant.slug, name=adapter.name, digest=upload.digest
        ),
        files=[msgspec.to_builtins(file) for file in upload.staged.files],
        size_bytes=upload.staged.size_bytes,
        rank=facts.rank,
        alpha=facts.alpha,
        target_modules=list(facts.target_modules[:200]),
        dtype=facts.dtype,
        tensors=facts.tensors,
        base_name=facts.base_name[:500],
        created_by=actor.name,
    )
    Adapter.objects.filter(pk=adapter.pk).update(
        version=F("version") + int(newest > 0), updated_at=timezone.now()
    )
    adapter.refresh_from_db()


@transaction.atomic
def update_adapter(
    *,
    public_id: str,
    actor: Actor,
    reason: str,
    pinned: bool | None = None,
    shared_with: Sequence[str] | None = None,
    expected_version: int | None = None,
) -> Adapter:
    """Pin an adapter, or say which tenants (by slug) may call it beside its own."""
    adapter = _live(public_id)
    before = _facts(adapter)
    changes: dict[str, Any] = {} if pinned is None else {"pinned": pinned}
    locking.change(adapter, changes, expected_version=expected_version, called="The adapter")
    if shared_with is not None:
        adapter.shared_with.set(_tenants(shared_with, besides=adapter.tenant.slug))
    _record("adapter.update", _path(adapter), actor, reason, (before, _facts(adapter)))
    return adapter


@transaction.atomic
def delete_adapter(
    *, public_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> Adapter:
    """Take an adapter's name away at once; replicas unload it as soon as its requests ended.

    The row and the files stay until no engine lists it any more.
    """
    adapter = _live(public_id)
    locking.change(
        adapter,
        {"deleted_at": timezone.now()},
        expected_version=expected_version,
        called="The adapter",
    )
    _record("adapter.delete", _path(adapter), actor, reason, (_facts(adapter), None))
    return adapter


@transaction.atomic
def activate_version(*, version_id: int, actor: Actor, reason: str) -> bool:
    """Let an adapter's name mean its new version; say whether it was still waiting for that."""
    version = AdapterVersion.objects.select_related("adapter__tenant").get(pk=version_id)
    _record("adapter.activate", _path(version.adapter), actor, reason,
            (None, {"version": version.number, "digest": version.digest}))  # fmt: skip
    waiting = AdapterVersion.objects.filter(pk=version_id, state=State.INCOMING)
    if not waiting.exists():
        transaction.set_rollback(True)
        return False
    version.adapter.versions.filter(state=State.ACTIVE).update(state=State.RETIRED)
    return bool(waiting.update(state=State.ACTIVE))


@transaction.atomic
def forget_version(*, version_id: int, actor: Actor, reason: str) -> None:
    """Remove the files of a version that no engine lists, and the adapter with its last one."""
    version = AdapterVersion.objects.select_related("adapter__tenant").get(pk=version_id)
    _record("adapter.forget", _path(version.adapter), actor, reason,
            ({"version": version.number, "digest": version.digest}, None))  # fmt: skip
    AdapterVersion.objects.filter(pk=version_id).update(
        state=State.RETIRED, removed_at=timezone.now()
    )
    same = AdapterVersion.objects.filter(digest=version.digest, removed_at__isnull=True)
    if not same.exists():
        uploads.forget(version.digest)
    kept = version.adapter.versions.filter(removed_at__isnull=True)
    if version.adapter.deleted_at is not None and not kept.exists():
        version.adapter.delete()


def book_adapter_use(uses: Mapping[str, datetime]) -> None:
    """Remember when adapters (by served name) were last asked for; older news change nothing."""
    for served_name, at in sorted(uses.items()):
        older = Q(last_used_at__isnull=True) | Q(last_used_at__lt=at - USE_GRAIN)
        found = Adapter.objects.filter(older, versions__served_name=served_name)
        Adapter.objects.filter(pk__in=list(found.values_list("pk", flat=True))).update(
            last_used_at=at
        )


def _live(public_id: str) -> Adapter:
    rows = Adapter.objects.select_related("tenant", "model").filter(deleted_at__isnull=True)
    adapter = rows.filter(public_id=public_id).first()
    if adapter is None:
        raise NotFound(f"There is no adapter '{public_id}'.")
    return adapter


def _tenant(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise NotFound(f"There is no tenant '{slug}'.", field="tenant")
    return tenant


def _tenants(slugs: Collection[str], *, besides: str) -> list[Tenant]:
    found = {tenant.slug: tenant for tenant in Tenant.objects.filter(slug__in=slugs)}
    missing = sorted(set(slugs) - set(found))
    if missing:
        raise Invalid(f"There is no tenant '{missing[0]}'.", field="shared_with")
    return [tenant for slug, tenant in sorted(found.items()) if slug != besides]


def _left_bytes(tenant: str) -> int:
    kept = AdapterVersion.objects.filter(adapter__tenant__slug=tenant, removed_at__isnull=True)
    used: int = kept.aggregate(bytes=Sum("size_bytes"))["bytes"] or 0
    left: int = settings.ADAPTER_TENANT_BYTES - used
    if left <= 0:
        raise TooLarge(_quota_text(tenant))
    return left


def _quota_text(tenant: str) -> str:
    return (
        f"The adapters of tenant '{tenant}' may take {settings.ADAPTER_TENANT_BYTES} bytes in all: "
        "delete one first."
    )


def _told(upload: Received) -> dict[str, Any]:
    return {
        "model": upload.model,
        "digest": upload.digest,
        "size_bytes": upload.staged.size_bytes,
        "rank": upload.facts.rank,
    }


def _facts(adapter: Adapter) -> dict[str, Any]:
    return {
        "model": adapter.model.name,
        "pinned": adapter.pinned,
        "shared_with": sorted(adapter.shared_with.values_list("slug", flat=True)),
    }


def _path(adapter: Adapter) -> str:
    return f"{adapter.tenant.slug}/{adapter.name}"


def _record(verb: str, path: str, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    audit.record(
        actor=actor,
        verb=verb,
        target=("adapter", path),
        reason=reason,
        change=change,
        touches_fleet=True,
    )
    transaction.on_commit(waker("fleet.adapters"))
    transaction.on_commit(waker("routing.publish"))
