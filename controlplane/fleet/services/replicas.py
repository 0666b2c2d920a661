"""Replicas: registering them, and every move of their lives. `replica_id` is the public id."""

from __future__ import annotations

from typing import TypedDict, Unpack

from controlplane.audit.services import Actor
from controlplane.domain.replica_states import Event
from controlplane.fleet.models import Replica


class ReplicaFields(TypedDict, total=False):
    """What may be said of a replica, at registration and later."""

    url: str  # required at registration
    node: str | None  # name
    engine: str
    engine_version: str
    served_model: str
    credential: str
    gpu_indices: list[int]
    weight: float


def register_replica(
    *, pool: str, actor: Actor, reason: str, **fields: Unpack[ReplicaFields]
) -> Replica:
    """Take an engine somebody else runs into a pool; it gets traffic once agents find it warm."""
    raise NotImplementedError


def update_replica(
    *,
    replica_id: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[ReplicaFields],
) -> Replica:
    """Change where or how a replica is reached."""
    raise NotImplementedError


def drain_replica(
    *,
    replica_id: str,
    actor: Actor,
    reason: str,
    limit_s: float | None = None,
    expected_version: int | None = None,
) -> Replica:
    """Stop new work on a replica; running streams go on until the drain deadline."""
    raise NotImplementedError


def eject_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> Replica:
    """Take a replica out until an operator restores it."""
    raise NotImplementedError


def restore_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> Replica:
    """Bring a replica back: from ejected, by cancelling its drain, or from stopped or failed."""
    raise NotImplementedError


def delete_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Forget a replica that has stopped, failed or never started."""
    raise NotImplementedError


def move_replica(
    *,
    replica_id: str,
    event: Event,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
) -> Replica:
    """Take one step of a replica's life: the only way its state ever changes.

    Raises:
        Conflict: when `event` means nothing in the replica's state, or somebody moved it first.
    """
    raise NotImplementedError
