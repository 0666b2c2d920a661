"""Tables, replicas and pools with defaults for all that a case does not care about."""

from __future__ import annotations

import random
from typing import Any

from routing_agent import wire
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.replica import Replica

NOW = 1000.0


def settings(**changes: Any) -> wire.PoolSettings:
    return wire.PoolSettings(**{"slow_start_s": 0, **changes})


def endpoint(name: str = "r0", **changes: Any) -> wire.Endpoint:
    return wire.Endpoint(**{"replica": name, "url": f"http://{name}:8000", **changes})


def pool(name: str = "p", *, size: int = 3, **changes: Any) -> wire.Pool:
    endpoints = tuple(endpoint(f"{name}{i}") for i in range(size))
    fields = {"model": "m", "version": "1", "overload": "queue", "settings": settings()}
    return wire.Pool(**{"name": name, "endpoints": endpoints, **fields, **changes})


def share(name: str, weight: float = 100.0) -> wire.WeightedPool:
    return wire.WeightedPool(pool=name, weight=weight)


def model(name: str = "m", *shares: wire.WeightedPool, **changes: Any) -> wire.ModelRoute:
    return wire.ModelRoute(model=name, split=shares or (share("p"),), **changes)


def table(*pools: wire.Pool, **changes: Any) -> wire.RoutingTable:
    fields = {"lineage": "l", "epoch": 1, "fleet_revision": 0, "models": (model(),)}
    return wire.RoutingTable(**{**fields, "pools": pools or (pool(),), **changes})


def fleet(*pools: wire.Pool, **changes: Any) -> Fleet:
    made = Fleet()
    made.apply(table(*pools, **changes), now=NOW, wall=NOW)
    return made


def pool_state(size: int = 3, **changes: Any) -> PoolState:
    return fleet(pool(size=size, settings=settings(**changes))).pools["p"]


def replica(**changes: Any) -> Replica:
    return Replica(endpoint(), pool="p", settings=settings(**changes))


def chance(seed: int = 1) -> random.Random:
    return random.Random(seed)
