"""Compiles a routing table from a snapshot of the fleet.

One bad row is left out and named; it never empties the table. The same snapshot always gives the
same bytes: everything is sorted, so an unchanged fleet has an unchanged digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import msgspec

from controlplane.domain import which_model
from controlplane.domain.errors import Invalid
from controlplane.domain.fleet_snapshot import (
    AdapterRow,
    FleetSnapshot,
    KeyRow,
    ModelRow,
    PoolRow,
    ReplicaRow,
    SplitRow,
    TenantRow,
)
from controlplane.domain.pool_settings import resolved_as_far_as_possible
from controlplane.domain.replica_states import State
from controlplane.domain.urls import checked_origin
from routing_agent import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row, or a part of one, that is not in the table, and why."""

    object: str  # "replica rpl-7f3a"
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A table and what could not be put into it."""

    table: wire.RoutingTable
    left_out: tuple[LeftOut, ...]


# Health-ejected replicas stay "ready": each agent judges health itself, and fresher.
_STATES: Final[Mapping[State, wire.EndpointState]] = {
    State.LOADING: "warming",
    State.WARMING: "warming",
    State.WAKING: "warming",
    State.READY: "ready",
    State.EJECTED: "ready",
    State.DRAINING: "draining",
}

_M = TypeVar("_M", bound=wire.Message)
_Row = TypeVar("_Row")


def compile_table(
    snapshot: FleetSnapshot, *, lineage: str, epoch: int, created_at: float
) -> Compiled:
    """Compile the table that `snapshot` amounts to, with its digest."""
    left_out: list[LeftOut] = []
    adapters = _adapters(snapshot, left_out)
    pools = _pools(snapshot, {adapter.served_name for adapter in adapters}, left_out)
    tenants = _each(snapshot.tenants, "tenant", lambda r: r.slug, _tenant, left_out)
    known = {tenant.name for tenant in tenants}
    table = wire.RoutingTable(
        lineage=lineage,
        epoch=epoch,
        fleet_revision=snapshot.revision,
        created_at=created_at,
        hash_seed=_hash_seed(lineage),
        models=_models(snapshot, {pool.name: pool for pool in pools}, left_out),
        pools=pools,
        tenants=tenants,
        api_keys=_each(
            snapshot.keys, "key", lambda r: r.public_id, lambda r: _key(r, known), left_out
        ),
        adapters=adapters,
    )
    table = msgspec.structs.replace(table, digest=wire.table_digest(table))
    return Compiled(table=table, left_out=tuple(left_out))


def _hash_seed(lineage: str) -> int:
    """Give a seed all agents share and nobody outside can guess, the same for every epoch."""
    return int.from_bytes(hashlib.sha256(lineage.encode()).digest()[:4], "big")


def _each(
    rows: Iterable[_Row],
    kind: str,
    name_of: Callable[[_Row], str],
    build: Callable[[_Row], _M],
    left_out: list[LeftOut],
) -> tuple[_M, ...]:
    """Build a message from each row in order of name; a row that fails is left out and named."""
    built = []
    for row in sorted(rows, key=name_of):
        try:
            built.append(_checked(build(row)))
        except (Invalid, TypeError, ValueError, msgspec.MsgspecError) as error:
            left_out.append(LeftOut(object=f"{kind} {name_of(row)}", problem=str(error)))
    return tuple(built)


def _checked(message: _M) -> _M:
    """Check a message against the schema as an agent will, types and ranges included.

    Raises:
        msgspec.ValidationError: with the path of the first bad field.
    """
    return msgspec.json.decode(msgspec.json.encode(message), type=type(message))


def _adapters(snapshot: FleetSnapshot, left_out: list[LeftOut]) -> tuple[wire.Adapter, ...]:
    models = {model.name for model in snapshot.models}
    tenants = {tenant.slug for tenant in snapshot.tenants}

    def build(row: AdapterRow) -> wire.Adapter:
        if row.model not in models or row.tenant not in tenants:
            raise ValueError(f"model {row.model!r} or tenant {row.tenant!r} is not in the table")
        return wire.Adapter(
            name=row.name,
            tenant=row.tenant,
            shared_with=tuple(sorted(set(row.shared_with) & tenants)),
            model=row.model,
            digest=row.digest,
            files=msgspec.convert(row.files, tuple[wire.AdapterFile, ...]),
            served_name=row.served_name,
            size_bytes=row.size_bytes,
            rank=row.rank,
            pinned=row.pinned,
            active=row.active,
        )

    return _each(snapshot.adapters, "adapter", lambda r: r.served_name, build, left_out)


def _pools(
    snapshot: FleetSnapshot, adapters: set[str], left_out: list[LeftOut]
) -> tuple[wire.Pool, ...]:
    by_pool: dict[str, list[ReplicaRow]] = {}
    for replica in snapshot.replicas:
        if replica.state in _STATES:
            by_pool.setdefault(replica.pool, []).append(replica)

    def build(row: PoolRow) -> wire.Pool:
        settings, faults = _settings(row)
        left_out.extend(
            LeftOut(object=f"setting of pool {row.slug}", problem=fault) for fault in faults
        )
        return wire.Pool(
            name=row.slug,
            model=row.model,
            version=row.version,
            overload=row.overload,  # type: ignore[arg-type]  # checked by the schema right after
            fallback_pool=row.fallback_pool,
            settings=settings,
            start_wait_s=row.start_wait_s,
            may_grow_to=row.may_grow_to,
            shadow=_shadow(row, left_out),
            endpoints=_each(
                by_pool.get(row.slug, ()),
                "replica",
                lambda r: r.public_id,
                lambda r: _endpoint(r, adapters),
                left_out,
            ),
        )

    pools = _each(snapshot.pools, "pool", lambda r: r.slug, build, left_out)
    return _without_dangling_shadows(_without_dangling_fallbacks(pools, left_out), left_out)


def _shadow(row: PoolRow, left_out: list[LeftOut]) -> wire.Shadow | None:
    """Give a pool's shadow; one that makes no sense is left out, the pool stays."""
    if row.shadow is None:
        return None
    try:
        return msgspec.convert(asdict(row.shadow), wire.Shadow)
    except msgspec.ValidationError as error:
        left_out.append(LeftOut(object=f"shadow of pool {row.slug}", problem=str(error)))
        return None


def _without_dangling_shadows(
    pools: tuple[wire.Pool, ...], left_out: list[LeftOut]
) -> tuple[wire.Pool, ...]:
    names = {pool.name for pool in pools}
    sound = []
    for pool in pools:
        if pool.shadow is not None and pool.shadow.pool not in names - {pool.name}:
            problem = f"pool {pool.shadow.pool!r} is not in the table"
            left_out.append(LeftOut(object=f"shadow of pool {pool.name}", problem=problem))
            pool = msgspec.structs.replace(pool, shadow=None)
        sound.append(pool)
    return tuple(sound)


def _settings(row: PoolRow) -> tuple[wire.PoolSettings, tuple[str, ...]]:
    if not isinstance(row.overrides, Mapping):
        return wire.PoolSettings(), ("the overrides are not a mapping; defaults stand for them",)
    return resolved_as_far_as_possible(row.overrides)


def _without_dangling_fallbacks(
    pools: tuple[wire.Pool, ...], left_out: list[LeftOut]
) -> tuple[wire.Pool, ...]:
    """Let a pool whose fallback is not in the table refuse what it would have passed on."""
    names = {pool.name for pool in pools}
    sound = []
    for pool in pools:
        if pool.overload == "fallback" and pool.fallback_pool not in names - {pool.name}:
            left_out.append(
                LeftOut(
                    object=f"fallback of pool {pool.name}",
                    problem=f"pool {pool.fallback_pool!r} is not in the table; overload is refused",
                )
            )
            pool = msgspec.structs.replace(pool, overload="reject", fallback_pool="")
        sound.append(pool)
    return tuple(sound)


def _endpoint(row: ReplicaRow, adapters: set[str]) -> wire.Endpoint:
    ejected = row.state is State.EJECTED and row.ejected_by_operator
    return wire.Endpoint(
        replica=row.public_id,
        url=checked_origin(row.url),
        engine=row.engine,  # type: ignore[arg-type]  # checked by the schema right after
        served_model=row.served_model,
        credential=row.credential,
        state="ejected" if ejected else _STATES[row.state],
        node=row.node,
        zone=row.zone,
        weight=row.weight,
        ready_at=row.ready_at,
        gpus=row.gpus,
        adapters=tuple(sorted(set(row.adapters) & adapters)),
    )


def _models(
    snapshot: FleetSnapshot, pools: Mapping[str, wire.Pool], left_out: list[LeftOut]
) -> tuple[wire.ModelRoute, ...]:
    taken = {model.name for model in snapshot.models}
    contexts = {pool.slug: pool.context_tokens for pool in snapshot.pools}
    shares: dict[str, list[wire.WeightedPool]] = {}
    for row in sorted(snapshot.splits, key=lambda r: (r.model, r.pool)):
        fault = _split_fault(row, pools)
        if fault:
            left_out.append(LeftOut(object=f"split {row.model} to {row.pool}", problem=fault))
        else:
            shares.setdefault(row.model, []).append(
                wire.WeightedPool(pool=row.pool, weight=row.weight)
            )

    def build(row: ModelRow) -> wire.ModelRoute:
        split = tuple(shares.get(row.name, ()))
        known = [c for share in split if (c := contexts[share.pool]) is not None]
        return wire.ModelRoute(
            model=row.name,
            aliases=_free_aliases(row, taken, left_out),
            split=split,
            bytes_per_token=row.bytes_per_token,
            context_tokens=min(known, default=None),
            complexity=_rule(row.complexity, which_model.complexity_of, row, taken, left_out),
            cascade=_rule(row.cascade, which_model.cascade_of, row, taken, left_out),
        )

    return _each(snapshot.models, "model", lambda r: r.name, build, left_out)


_Rule = TypeVar("_Rule", wire.ComplexityRule, wire.CascadeRule)


def _rule(
    raw: Any,
    read: Callable[[Any], _Rule | None],
    row: ModelRow,
    models: set[str],
    left_out: list[LeftOut],
) -> _Rule | None:
    """Read a model's rule; one that is not sound, or names a model that is gone, is left out."""
    try:
        rule = read(raw)
    except Invalid as fault:
        left_out.append(LeftOut(object=f"model {row.name}", problem=fault.message))
        return None
    named: set[str] = set()
    if isinstance(rule, wire.ComplexityRule):
        named = which_model.targets(rule, None)
    elif rule is not None:
        named = which_model.targets(None, rule)
    if missing := sorted(named - models):
        problem = f"its rule names the model '{missing[0]}', which is not there"
        left_out.append(LeftOut(object=f"model {row.name}", problem=problem))
        return None
    return rule


def _split_fault(row: SplitRow, pools: Mapping[str, wire.Pool]) -> str:
    pool = pools.get(row.pool)
    if pool is None:
        return f"pool {row.pool!r} is not in the table"
    if pool.model != row.model:
        return f"pool {row.pool!r} serves {pool.model!r}"
    if not 0 <= row.weight < float("inf"):
        return f"weight {row.weight} is not a number of at least 0"
    return ""


def _free_aliases(row: ModelRow, taken: set[str], left_out: list[LeftOut]) -> tuple[str, ...]:
    """Give the aliases nobody else has; the first model by name keeps one that two claim."""
    free = []
    for alias in sorted(set(_names(row.aliases)) - {row.name}):
        if alias in taken:
            left_out.append(
                LeftOut(object=f"alias {alias} of model {row.name}", problem="the name is taken")
            )
        else:
            taken.add(alias)
            free.append(alias)
    return tuple(free)


def _names(stored: Any) -> tuple[str, ...]:
    """Take a stored list of names; anything else raises ValueError."""
    if not isinstance(stored, (list, tuple)) or not all(isinstance(name, str) for name in stored):
        raise ValueError(f"{stored!r} is not a list of names")
    return tuple(stored)


def _tenant(row: TenantRow) -> wire.Tenant:
    return wire.Tenant(
        name=row.slug,
        priority=row.priority,
        models=_names(row.models),
        suspended=row.suspended,
        limits=tenant_limits(row),
    )


def tenant_limits(row: TenantRow) -> wire.TenantLimits:
    """Give a tenant's limits over all agents; without one, agents need no lease for it."""
    amounts = (row.requests_per_minute, row.tokens_per_minute, row.concurrency)
    return msgspec.convert(
        {
            "requests_per_minute": row.requests_per_minute,
            "tokens_per_minute": row.tokens_per_minute,
            "concurrency": row.concurrency,
            "leased": any(amount is not None for amount in amounts),
            "when_unreachable": row.when_unreachable,
        },
        wire.TenantLimits,
    )


def _key(row: KeyRow, tenants: set[str]) -> wire.ApiKey:
    if row.tenant not in tenants:
        raise ValueError(f"tenant {row.tenant!r} is not in the table")
    if len(row.sha256) != 64 or not set(row.sha256) <= set("0123456789abcdef"):
        raise ValueError("its hash is not a SHA-256 in hex")
    return wire.ApiKey(
        id=row.public_id, sha256=row.sha256, tenant=row.tenant, expires_at=row.expires_at
    )
