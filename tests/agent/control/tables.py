"""Builds routing tables with a right digest; what a case does not care about has a default."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from routing_agent.wire import (
    Endpoint,
    ModelRoute,
    Pool,
    RoutingTable,
    WeightedPool,
    table_digest,
)


def a_table(
    epoch: int = 1,
    *,
    lineage: str = "lineage-1",
    urls: tuple[str, ...] = ("http://127.0.0.1:9",),
    state: str = "ready",
    **fields: Any,
) -> RoutingTable:
    endpoints = tuple(
        Endpoint(replica=f"r{i}", url=url, state=state, credential="engine-secret")  # type: ignore[arg-type]
        for i, url in enumerate(urls)
    )
    pool = Pool(name="chat", model="m", version="v1", overload="queue", endpoints=endpoints)
    content: dict[str, Any] = {
        "lineage": lineage,
        "epoch": epoch,
        "fleet_revision": epoch,
        "open_access": True,
        "hash_seed": epoch,  # another content for each epoch
        "models": (ModelRoute(model="m", split=(WeightedPool(pool="chat"),)),),
        "pools": (pool,),
    } | fields
    table = RoutingTable(**content)
    return replace(table, digest=table_digest(table))
