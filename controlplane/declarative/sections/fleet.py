"""Nodes as facts, pools with their settings, splits, and static replicas."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet

from controlplane.catalog.models import Model
from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain.errors import Conflict
from controlplane.domain.replica_states import State
from controlplane.fleet import services
from controlplane.fleet.models import Node, Pool, Replica, Shadow


class NodeEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine as declared; its agent registers with a token of its own."""

    name: str
    zone: str = ""
    hostname: str = ""
    gpus: list[dict[str, Any]] = []
    owner: str = ""
    backup_owner: str = ""


def _nodes() -> list[NodeEntry]:
    names = NodeEntry.__struct_fields__
    return [NodeEntry(**{n: getattr(row, n) for n in names}) for row in Node.objects.all()]


NODES = Section(
    name="nodes",
    entry=NodeEntry,
    what="node",
    read=_nodes,
    create=lambda e, who: services.create_node(**e.fields(), **who),
    update=lambda old, e, who: services.update_node(**e.fields(), **who),
    remove=lambda e, who: services.delete_node(name=e.name, **who),
    missing=lambda e: "Its agent has to register again, with a new token.",
)


class PoolEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool and its policies; `settings` has what differs from the defaults."""

    slug: str
    model: str
    version: str
    overload_policy: str
    description: str = ""
    traffic_class: str = "default"
    wanted_replicas: int = 0
    fallback_pool: str | None = None
    settings: dict[str, Any] = {}
    owner: str = ""
    backup_owner: str = ""

    KEY: ClassVar[tuple[str, ...]] = ("slug",)


def _pools() -> list[PoolEntry]:
    rows = Pool.objects.select_related("model_version__model", "fallback_pool")
    named = ("slug", "overload_policy", "description", "traffic_class", "wanted_replicas",
             "settings", "owner", "backup_owner")  # fmt: skip
    return [
        PoolEntry(
            model=row.model_version.model.name,
            version=row.model_version.name,
            fallback_pool=row.fallback_pool.slug if row.fallback_pool else None,
            **{name: getattr(row, name) for name in named},
        )
        for row in rows
    ]


def _create_pool(entry: PoolEntry, who: Who) -> None:
    """Make a pool; one that falls back does so once all pools are there (`_fall_back`)."""
    fields = entry.fields("fallback_pool")
    if entry.fallback_pool is not None and entry.overload_policy == Pool.Overload.FALLBACK:
        fields["overload_policy"] = Pool.Overload.REJECT.value
    services.create_pool(**fields, **who)


def _fall_back(entry: PoolEntry, who: Who) -> None:
    if entry.fallback_pool is not None:
        services.update_pool(
            slug=entry.slug,
            overload_policy=entry.overload_policy,
            fallback_pool=entry.fallback_pool,
            **who,
        )


def _update_pool(old: PoolEntry, entry: PoolEntry, who: Who) -> None:
    if (old.model, old.version) != (entry.model, entry.version):
        raise Conflict(
            f"Pool '{entry.slug}' serves {old.model} {old.version}: a pool keeps its version. Make"
            " another pool and move its traffic.",
            field="version",
        )
    services.update_pool(**entry.fields("model", "version"), **who)


POOLS = Section(
    name="pools",
    entry=PoolEntry,
    what="pool",
    read=_pools,
    create=_create_pool,
    update=_update_pool,
    remove=lambda e, who: services.delete_pool(slug=e.slug, **who),
    finish=_fall_back,
)


class SplitEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model's sessions are split over its pools; a pool that is left out gets none."""

    model: str
    weights: dict[str, float] = {}

    KEY: ClassVar[tuple[str, ...]] = ("model",)


def _splits() -> list[SplitEntry]:
    rows = Model.objects.prefetch_related("splits__pool")
    return [
        SplitEntry(model=m.name, weights={s.pool.slug: s.weight for s in m.splits.all()})
        for m in rows
        if m.splits.all()
    ]


def _set_split(entry: SplitEntry, who: Who) -> None:
    services.set_splits(model=entry.model, weights=entry.weights, **who)


SPLITS = Section(
    name="splits",
    entry=SplitEntry,
    what="split",
    read=_splits,
    create=_set_split,
    update=lambda old, e, who: _set_split(e, who),
    remove=lambda e, who: _set_split(SplitEntry(model=e.model), who),
)


class ReplicaEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica that somebody else runs. Its state is what agents find, not a setting."""

    id: str
    pool: str
    url: str
    node: str | None = None
    engine: str = "vllm"
    served_model: str = ""
    gpu_indices: list[int] = []
    weight: float = 1.0
    has_credential: bool = False  # the engine's own key: never in a file

    KEY: ClassVar[tuple[str, ...]] = ("id",)


def _replica(row: Replica) -> ReplicaEntry:
    named = ("url", "engine", "served_model", "gpu_indices", "weight")
    return ReplicaEntry(
        id=row.public_id,
        pool=row.pool.slug,
        node=row.node.name if row.node else None,
        has_credential=bool(row.credential),
        **{name: getattr(row, name) for name in named},
    )


def _static() -> QuerySet[Replica]:
    rows = Replica.objects.select_related("pool", "node")
    return rows.filter(executor=Replica.Executor.STATIC)


def _replicas() -> list[ReplicaEntry]:
    return [_replica(row) for row in _static().exclude(state=State.STOPPED)]


def _stopped(entry: ReplicaEntry) -> Replica | None:
    """Give the drained replica that a file brings back under its id."""
    return _static().filter(public_id=entry.id, state=State.STOPPED).first()


def _create_replica(entry: ReplicaEntry, who: Who) -> None:
    row = _stopped(entry)
    if row is None:
        fields = entry.fields("id", "has_credential")
        services.register_replica(replica_id=entry.id, **fields, **who)
        return
    services.restore_replica(replica_id=entry.id, **who)
    if _replica(row) != entry:
        _update_replica(_replica(row), entry, who)


def _update_replica(old: ReplicaEntry, entry: ReplicaEntry, who: Who) -> None:
    if old.pool != entry.pool:
        raise Conflict(
            f"Replica {entry.id} is of pool '{old.pool}' and cannot change it: register another.",
            field="pool",
        )
    if entry.has_credential and not old.has_credential:
        raise Conflict(
            f"Replica {entry.id} has no credential, and a file cannot give one: set it by API.",
            field="has_credential",
        )
    fields = entry.fields("id", "pool", "has_credential")
    if not entry.has_credential:
        fields["credential"] = ""
    services.update_replica(replica_id=entry.id, **fields, **who)


def _missing(entry: ReplicaEntry) -> str:
    row = _stopped(entry)
    if row is not None and bool(row.credential) >= entry.has_credential:
        return "It was drained and has stopped: it is taken back, as loading."
    if entry.has_credential:
        return "Its engine's credential is in no file: set it by API, until then it is not usable."
    return ""


REPLICAS = Section(
    name="replicas",
    entry=ReplicaEntry,
    what="replica",
    read=_replicas,
    create=_create_replica,
    update=_update_replica,
    remove=lambda e, who: services.delete_replica(replica_id=e.id, **who),
    missing=_missing,
)


class ShadowEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pool gets copies of another's requests, how many, and what is kept of them."""

    pool: str
    shadow_pool: str
    ratio: float = 0.1
    at_once: int = 4
    keep: str = "figures"

    KEY: ClassVar[tuple[str, ...]] = ("pool",)


def _shadows() -> list[ShadowEntry]:
    return [
        ShadowEntry(
            pool=row.pool.slug,
            shadow_pool=row.shadow_pool.slug,
            ratio=row.ratio,
            at_once=row.at_once,
            keep=row.keep,
        )
        for row in Shadow.objects.select_related("pool", "shadow_pool")
    ]


SHADOWS = Section(
    name="shadows",
    entry=ShadowEntry,
    what="shadow",
    read=_shadows,
    create=lambda e, who: services.set_shadow(**e.fields(), **who),
    update=lambda old, e, who: services.set_shadow(**e.fields(), **who),
    remove=lambda e, who: services.remove_shadow(pool=e.pool, **who),
)
