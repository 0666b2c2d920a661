"""The routing table compiled for look-ups: model, key, pool, and the split of sessions over pools.

A row that makes no sense is left out and named in `faults`; it never empties the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import log
from typing import Literal

import xxhash
from msgspec.structs import replace

from routing_agent.core import adapters, address, paths
from routing_agent.wire import (
    Adapter,
    CascadeRule,
    ComplexityRule,
    Endpoint,
    ModelRoute,
    Pool,
    RoutingTable,
    Tenant,
)

LOCAL_TENANT = Tenant(name="local")


SessionKind = Literal["named", "user", "found"]


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Who calls: the tenant behind a client key, or a caller without one."""

    key_id: str
    tenant: Tenant
    expires_at: float | None = None  # Unix seconds


@dataclass(frozen=True, slots=True)
class Model:
    """A public model: its name and the pools its sessions are split over, in a fixed order."""

    name: str
    bytes_per_token: float
    context_tokens: int | None
    pools: tuple[str, ...]  # only those with a weight above zero
    weights: tuple[float, ...]
    seeds: tuple[int, ...]  # of the pools' draws
    limits: tuple[int | None, ...] = ()  # most prompt tokens of the pools; None: any
    has_shapes: bool = False
    complexity: ComplexityRule | None = None
    cascade: CascadeRule | None = None

    def pool_for(self, session: int) -> str:
        """Give the pool of a session, by its 64-bit hash: the same on every agent.

        Weighted rendezvous: each pool draws from an exponential distribution with its weight as
        rate, by a hash of session and pool, and the smallest draw wins. So a pool gets its part of
        all weights; a weight that grows moves sessions towards its pool only; and where a session
        lies on a pool's own ring has nothing to do with how it came there.
        """
        pools = self.pools
        if len(pools) == 1:
            return pools[0]
        key = session.to_bytes(8, "little")
        found, least = pools[0], float("inf")
        for i, seed in enumerate(self.seeds):
            point = (xxhash.xxh3_64_intdigest(key, seed) + 1) / _HASH_SPAN
            draw = -log(point) / self.weights[i]
            if draw < least:
                found, least = pools[i], draw
        return found

    def pool_of_shape(self, session: int, limit: int | None) -> str:
        """Give the pool of a session among those with this limit of prompt tokens."""
        key = session.to_bytes(8, "little")
        draws = [
            (-log((xxhash.xxh3_64_intdigest(key, seed) + 1) / _HASH_SPAN) / weight, pool)
            for pool, weight, seed, its_limit in zip(
                self.pools, self.weights, self.seeds, self.limits, strict=True
            )
            if its_limit == limit
        ]
        return min(draws)[1]


@dataclass(frozen=True, slots=True)
class Table:
    """One compiled routing table."""

    lineage: str
    epoch: int
    digest: str
    hash_seed: int
    block_bytes: int
    open_access: bool
    models: Mapping[str, Model]  # by public name
    names: Mapping[str, Model]  # by public name or alias
    pools: Mapping[str, Pool]  # endpoints without faults only
    tenants: Mapping[str, Tenant]
    keys: Mapping[bytes, KeyOwner]  # by the 32 raw bytes of the SHA-256
    adapters: adapters.Names
    served_adapters: Mapping[str, Adapter]  # by the name that engines know
    extra_paths: frozenset[str]
    body_limit_bytes: int  # the largest of all pools: what must be read to find the pool
    faults: tuple[str, ...]


EMPTY_BODY_LIMIT_BYTES = 16 * 1024 * 1024
_HASH_SPAN = float(1 << 64)
_SHA256_BYTES = 32


def compile_table(table: RoutingTable) -> Table:
    """Compile a table, leaving out bad rows."""
    return _Compiler(table).compile()


def session_hash(
    seed: int, tenant: str, kind: SessionKind, key: bytes, *, adapter: str = ""
) -> int:
    """Give the 64-bit hash of a tenant's session; no two tenants share a session.

    `kind` keeps keys apart that clients name ("named") from fingerprints ("found"). With an adapter
    it is another session: nothing that an engine computed for one serves the other.
    """
    if adapter:
        key = b"%b\x00%b" % (adapter.encode(), key)
    return xxhash.xxh3_64_intdigest(b"%b\x00%b\x00%b" % (tenant.encode(), kind.encode(), key), seed)


@dataclass(slots=True)
class _Compiler:
    table: RoutingTable
    faults: list[str] = field(default_factory=list)

    def compile(self) -> Table:
        table = self.table
        pools = {pool.name: pool for pool in self._pools()}
        pools = {name: self._checked_fallback(pool, pools) for name, pool in pools.items()}
        pools = {name: self._checked_shadow(pool, pools) for name, pool in pools.items()}
        models = {model.name: model for model in self._models(pools)}
        tenants = {tenant.name: tenant for tenant in table.tenants}
        if table.open_access:
            tenants.setdefault(LOCAL_TENANT.name, LOCAL_TENANT)
        names = self._names(models)
        sound = adapters.sound_adapters(table.adapters, names, models, self.faults)
        return Table(
            lineage=table.lineage,
            epoch=table.epoch,
            digest=table.digest,
            hash_seed=table.hash_seed,
            block_bytes=table.block_bytes,
            open_access=table.open_access,
            models=models,
            names=names,
            pools=pools,
            tenants=tenants,
            keys=dict(self._keys(tenants)),
            adapters=adapters.names_by_tenant(sound, names),
            served_adapters={adapter.served_name: adapter for adapter in sound},
            extra_paths=frozenset(p for pool in pools.values() for p in pool.settings.extra_paths),
            body_limit_bytes=max(
                (pool.settings.body_limit_bytes for pool in pools.values()),
                default=EMPTY_BODY_LIMIT_BYTES,
            ),
            faults=tuple(self.faults),
        )

    def _pools(self) -> Iterator[Pool]:
        seen_pools: set[str] = set()
        seen_replicas: set[str] = set()
        for pool in self.table.pools:
            if not pool.name or pool.name in seen_pools:
                self.faults.append(f"pool '{pool.name}': name is empty or used twice")
                continue
            seen_pools.add(pool.name)
            yield self._checked_pool(pool, seen_replicas)

    def _checked_pool(self, pool: Pool, seen: set[str]) -> Pool:
        endpoints = []
        for endpoint in pool.endpoints:
            fault = _endpoint_fault(endpoint, seen)
            if fault:
                self.faults.append(f"pool '{pool.name}', replica '{endpoint.replica}': {fault}")
                continue
            seen.add(endpoint.replica)
            endpoints.append(endpoint)
        extra = tuple(p for p in pool.settings.extra_paths if self._is_fit(pool.name, p))
        return replace(
            pool,
            endpoints=tuple(endpoints),
            settings=replace(pool.settings, extra_paths=extra),
        )

    def _is_fit(self, pool: str, path: str) -> bool:
        fault = paths.extra_path_fault(path)
        if fault:
            self.faults.append(f"pool '{pool}', extra path '{path}': {fault}")
        return not fault

    def _checked_fallback(self, pool: Pool, pools: Mapping[str, Pool]) -> Pool:
        if not pool.fallback_pool or pool.fallback_pool in pools:
            return pool
        self.faults.append(f"pool '{pool.name}': no fallback pool '{pool.fallback_pool}'")
        return replace(pool, fallback_pool="")

    def _checked_shadow(self, pool: Pool, pools: Mapping[str, Pool]) -> Pool:
        if pool.shadow is None or pool.shadow.pool in pools.keys() - {pool.name}:
            return pool
        self.faults.append(f"pool '{pool.name}': no shadow pool '{pool.shadow.pool}'")
        return replace(pool, shadow=None)

    def _models(self, pools: Mapping[str, Pool]) -> Iterator[Model]:
        seen: set[str] = set()
        for route in self.table.models:
            if not route.model or route.model in seen:
                self.faults.append(f"model '{route.model}': name is empty or used twice")
                continue
            seen.add(route.model)
            yield self._model(route, pools)

    def _complexity(self, route: ModelRoute) -> ComplexityRule | None:
        rule = route.complexity
        known = {model.model for model in self.table.models}
        for one in () if rule is None else rule.classes:
            if one.model not in known:
                self.faults.append(
                    f"model '{route.model}', class '{one.name}': no model '{one.model}'"
                )
                return None
        return rule

    def _cascade(self, route: ModelRoute) -> CascadeRule | None:
        rule = route.cascade
        if rule is None:
            return None
        if rule.to == route.model or rule.to not in {model.model for model in self.table.models}:
            self.faults.append(f"model '{route.model}', cascade: no other model '{rule.to}'")
            return None
        return rule

    def _model(self, route: ModelRoute, pools: Mapping[str, Pool]) -> Model:
        shares = []
        for share in route.split:
            if share.pool not in pools:
                self.faults.append(f"model '{route.model}': no pool '{share.pool}'")
            elif share.weight > 0:
                shares.append(share)
        limits = tuple(pools[share.pool].settings.max_input_tokens for share in shares)
        return Model(
            name=route.model,
            bytes_per_token=route.bytes_per_token,
            context_tokens=route.context_tokens,
            pools=tuple(share.pool for share in shares),
            weights=tuple(share.weight for share in shares),
            seeds=tuple(_pool_seed(self.table.hash_seed, share.pool) for share in shares),
            limits=limits,
            has_shapes=any(limit is not None for limit in limits),
            complexity=self._complexity(route),
            cascade=self._cascade(route),
        )

    def _names(self, models: Mapping[str, Model]) -> dict[str, Model]:
        names = dict(models)
        for route in self.table.models:
            for alias in route.aliases:
                model = models.get(route.model)
                if model is None or not alias or names.setdefault(alias, model) is not model:
                    self.faults.append(f"model '{route.model}': alias '{alias}' is already taken")
        return names

    def _keys(self, tenants: Mapping[str, Tenant]) -> Iterator[tuple[bytes, KeyOwner]]:
        for key in self.table.api_keys:
            digest = _sha256_bytes(key.sha256)
            tenant = tenants.get(key.tenant)
            if digest is None:
                self.faults.append(f"key '{key.id}': not a SHA-256 in hex")
            elif tenant is None:
                self.faults.append(f"key '{key.id}': no tenant '{key.tenant}'")
            else:
                yield digest, KeyOwner(key.id, tenant, key.expires_at)


def _pool_seed(seed: int, pool: str) -> int:
    """Give the seed of a pool's draws for sessions."""
    return xxhash.xxh3_64_intdigest(pool.encode(), seed)


def _endpoint_fault(endpoint: Endpoint, seen: set[str]) -> str:
    if not endpoint.replica or endpoint.replica in seen:
        return "id is empty or used twice"
    if not address.is_safe_header(endpoint.replica):
        return "id has characters that no header may carry"
    if not address.is_safe_header(endpoint.credential):
        return "credential has characters that no header may carry"
    return address.url_fault(endpoint.url)


def _sha256_bytes(text: str) -> bytes | None:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if len(digest) == _SHA256_BYTES else None
