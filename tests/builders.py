"""Domain objects with defaults: a test names only what it is about."""

from __future__ import annotations

from typing import Any

from controlplane.domain.fleet_snapshot import (
    FleetSnapshot,
    KeyRow,
    ModelRow,
    PoolRow,
    ReplicaRow,
    SplitRow,
    TenantRow,
)
from controlplane.domain.replica_states import State
from controlplane.domain.replicas import ReplicaView, Sighting
from routing_agent import wire

LINEAGE = "11111111-2222-3333-4444-555555555555"


def pool_row(slug: str = "chat", **given: Any) -> PoolRow:
    """A pool of model `m`, version `v1`."""
    defaults: dict[str, Any] = {
        "model": "m",
        "version": "v1",
        "overload": "queue",
        "overrides": {},
    }
    return PoolRow(slug=slug, **(defaults | given))


def replica_row(public_id: str = "rpl-1", **given: Any) -> ReplicaRow:
    """A ready replica of pool `chat`."""
    port = 9000 + sum(map(ord, public_id)) % 1000
    defaults: dict[str, Any] = {
        "pool": "chat",
        "url": f"http://10.0.0.1:{port}",
        "state": State.READY,
    }
    return ReplicaRow(public_id=public_id, **(defaults | given))


def snapshot(**given: Any) -> FleetSnapshot:
    """A fleet with one model, one pool with one replica, one tenant with one key."""
    defaults: dict[str, Any] = {
        "revision": 1,
        "models": (ModelRow(name="m"),),
        "pools": (pool_row(),),
        "replicas": (replica_row(),),
        "splits": (SplitRow(model="m", pool="chat", weight=100.0),),
        "tenants": (TenantRow(slug="acme"),),
        "keys": (KeyRow(public_id="key-1", sha256="a" * 64, tenant="acme"),),
    }
    return FleetSnapshot(**(defaults | given))


def view(state: State, **given: Any) -> ReplicaView:
    """A replica in `state` as the database knows it."""
    return ReplicaView(replica="rpl-1", state=state, **given)


def sighting(
    agent: str = "node-1", *, revision: int = 10, silent: bool = False, **report: Any
) -> Sighting:
    """What an agent says of `rpl-1`; `silent` = nothing."""
    told = None if silent else wire.ReplicaReport(replica="rpl-1", **report)
    return Sighting(agent=agent, revision=revision, report=told)
