"""Adapters: who has which, by digest. The files stay in the store, and are checked from there."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

from controlplane.catalog import services, uploads
from controlplane.catalog.models import Adapter, AdapterVersion
from controlplane.catalog.services import Wanted
from controlplane.catalog.uploads import Incoming
from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain.adapters import CONFIG_FILE, WEIGHTS_FILE
from controlplane.domain.errors import Conflict, Invalid


class AdapterEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter with its active version's digest."""

    tenant: str
    name: str
    model: str
    digest: str
    pinned: bool = False
    shared_with: list[str] = []

    KEY: ClassVar[tuple[str, ...]] = ("tenant", "name")


def _adapters() -> list[AdapterEntry]:
    active = AdapterVersion.objects.filter(
        state=AdapterVersion.State.ACTIVE, adapter__deleted_at__isnull=True
    )
    rows = active.select_related("adapter__tenant", "adapter__model")
    return [
        AdapterEntry(
            tenant=row.adapter.tenant.slug,
            name=row.adapter.name,
            model=row.adapter.model.name,
            digest=row.digest,
            pinned=row.adapter.pinned,
            shared_with=sorted(row.adapter.shared_with.values_list("slug", flat=True)),
        )
        for row in rows.prefetch_related("adapter__shared_with")
    ]


def _create(entry: AdapterEntry, who: Who) -> None:
    """Take the stored files in as an upload of them would be: with every check."""
    folder = uploads.folder_of(entry.digest)
    if not (len(entry.digest) == 64 and entry.digest.isalnum() and folder.is_dir()):
        raise Invalid(
            f"The files of adapter '{entry.key}' are not in the store: upload them.",
            field="digest",
        )
    with ExitStack() as opened:
        files = [
            Incoming(name, opened.enter_context((folder / name).open("rb")))
            for name in (CONFIG_FILE, WEIGHTS_FILE)
        ]
        wanted = Wanted(tenant=entry.tenant, name=entry.name, model=entry.model)
        taken = services.received(wanted=wanted, uploaded=files, actor=who["actor"])
        upload = opened.enter_context(taken)
        if upload.digest != entry.digest:
            raise Conflict(
                f"The stored files of adapter '{entry.key}' are not what their digest says.",
                field="digest",
            )
        row = services.add_version(upload=upload, **who)
    _settle(row, entry, who)


def _update(old: AdapterEntry, entry: AdapterEntry, who: Who) -> None:
    if (old.model, old.digest) != (entry.model, entry.digest):
        raise Conflict(
            f"Adapter '{entry.key}' has other content: upload the version instead.", field="digest"
        )
    _settle(_row(entry), entry, who)


def _settle(row: Adapter, entry: AdapterEntry, who: Who) -> None:
    if row.pinned != entry.pinned or _shared(row) != sorted(entry.shared_with):
        services.update_adapter(
            public_id=row.public_id, pinned=entry.pinned, shared_with=entry.shared_with, **who
        )


def _shared(row: Adapter) -> list[str]:
    return sorted(row.shared_with.values_list("slug", flat=True))


def _row(entry: AdapterEntry) -> Adapter:
    return Adapter.objects.get(tenant__slug=entry.tenant, name=entry.name, deleted_at__isnull=True)


ADAPTERS = Section(
    name="adapters",
    entry=AdapterEntry,
    what="adapter",
    read=_adapters,
    create=_create,
    update=_update,
    remove=lambda e, who: services.delete_adapter(public_id=_row(e).public_id, **who),
)
