"""The routing table compiled for look-ups: model, key, pool, and the split of sessions over pools.

A row that makes no sense is left out and named in `faults`; it never empties the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import xxhash

from routing_agent.core import paths
from routing_agent.wire import ModelRoute, Pool, RoutingTable, Tenant

LOCAL_TENANT = Tenant(name="local")


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Whom a client key belongs to."""

    key_id: str
    tenant: Tenant
    expires_at: float | None  # Unix seconds


@dataclass(frozen=True, slots=True)
class Model:
    """A public model: its name and the pools its sessions are split over, in a fixed order."""

    name: str
    bytes_per_token: float
    context_tokens: int | None
    pools: tuple[str, ...]  # only those with a weight above zero
    bounds: tuple[float, ...]  # upper ends of the pools' shares of [0, 1); the last is 1

    def pool_for(self, session: int) -> str:
        """Give the pool of a session, by its 64-bit hash: the same on every agent."""
        if len(self.pools) == 1:
            return self.pools[0]
        point = session / _HASH_SPAN
        for pool, bound in zip(self.pools, self.bounds, strict=True):
            if point < bound:
                return pool
        return self.pools[-1]


@dataclass(frozen=True, slots=True)
class Table:
    """One compiled routing table."""

    lineage: str
    epoch: int
    digest: str
    hash_seed: int
    open_access: bool
    models: Mapping[str, Model]  # by public name
    names: Mapping[str, Model]  # by public name or alias
    pools: Mapping[str, Pool]  # endpoints without faults only
    tenants: Mapping[str, Tenant]
    keys: Mapping[bytes, KeyOwner]  # by the 32 raw bytes of the SHA-256
    extra_paths: frozenset[str]
    body_limit_bytes: int  # the largest of all pools: what must be read to find the pool
    faults: tuple[str, ...]


EMPTY_BODY_LIMIT_BYTES = 16 * 1024 * 1024
_HASH_SPAN = float(1 << 64)


def compile_table(table: RoutingTable) -> Table:
    """Compile a table, leaving out bad rows."""
    return _Compiler(table).compile()


def session_hash(seed: int, tenant: str, session: str) -> int:
    """Give the 64-bit hash of a tenant's session; no two tenants share a session."""
    return xxhash.xxh3_64_intdigest(f"{tenant}\x00{session}", seed)


@dataclass(slots=True)
class _Compiler:
    table: RoutingTable
    faults: list[str] = field(default_factory=list)

    def compile(self) -> Table:
        table = self.table
        pools = {pool.name: pool for pool in self._pools()}
        pools = {name: self._checked_fallback(pool, pools) for name, pool in pools.items()}
        models = {model.name: model for model in self._models(pools)}
        tenants = {tenant.name: tenant for tenant in table.tenants}
        if table.open_access:
            tenants.setdefault(LOCAL_TENANT.name, LOCAL_TENANT)
        return Table(
            lineage=table.lineage,
            epoch=table.epoch,
            digest=table.digest,
            hash_seed=table.hash_seed,
            open_access=table.open_access,
            models=models,
            names=self._names(models),
            pools=pools,
            tenants=tenants,
            keys=dict(self._keys(tenants)),
            extra_paths=frozenset(p for pool in pools.values() for p in pool.settings.extra_paths),
            body_limit_bytes=max(
                (pool.settings.body_limit_bytes for pool in pools.values()),
                default=EMPTY_BODY_LIMIT_BYTES,
            ),
            faults=tuple(self.faults),
        )
