"""Replicas: registering, changing and forgetting them. `replica_id` is the public id everywhere."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack, get_args

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict, Invalid
from controlplane.domain.replica_states import Event, State
from controlplane.domain.urls import checked_origin
from controlplane.fleet.models import Node, Pool, Replica
from controlplane.fleet.services.editing import (
    create,
    edit,
    found,
    plain,
    refuse_if_moved,
)
from controlplane.fleet.services.moves import REASON_LENGTH, take_step
from controlplane.wake import waker
from routing_agent import wire

# Nothing is ever sent to a replica in these states: its address may change, its row may go.
WITHOUT_TRAFFIC = frozenset(
    {State.PENDING, State.LOADING, State.WARMING, State.STOPPED, State.FAILED}
)


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


@transaction.atomic
def register_replica(
    *,
    pool: str,
    actor: Actor,
    reason: str,
    replica_id: str | None = None,
    **fields: Unpack[ReplicaFields],
) -> Replica:
    """Take an engine somebody else runs into a pool; it gets traffic once agents find it warm.

    Args:
        replica_id: the one it had before, where a file brings it back; else it gets a new one.
    """
    if not fields.get("url"):
        raise Invalid("url is required: where the engine listens.", field="url")
    if replica_id is not None and not re.fullmatch(r"rpl-[0-9a-z-]{1,28}", replica_id):
        raise Invalid("id begins with 'rpl-' and has at most 32 letters and digits.", field="id")
    columns = _columns(fields)
    replica = Replica(
        public_id=replica_id or f"rpl-{secrets.token_hex(5)}",
        pool=found(Pool.objects.all(), "pool", "pool", slug=pool),
        state=State.PENDING,
        state_since=timezone.now(),
        state_actor=actor.name,
        **columns,
    )
    _check_gpus(replica)
    if Replica.objects.filter(public_id=replica.public_id).exists():
        raise Conflict(
            f"There is a replica {replica.public_id} already.", code="exists", field="id"
        )
    create(replica, _taken(replica.url), "url")
    take_step(replica, Event.START, actor=actor, reason=reason or "registered")
    record(
        actor=actor,
        verb="replica.register",
        target=("replica", replica.public_id),
        reason=reason,
        change=(None, {"pool": pool, **plain(replica, columns)}),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return replica


@transaction.atomic
def create_run_replica(
    *, pool: Pool, node: Node, actor: Actor, reason: str, is_spare: bool, **columns: Any
) -> Replica:
    """Write down a replica that the node's agent is to run; its engine is started later.

    Args:
        columns: url, engine, served_model, credential, gpu_indices, launch.
    """
    replica = Replica(
        public_id=f"rpl-{secrets.token_hex(5)}",
        pool=pool,
        node=node,
        executor=Replica.Executor.AGENT,
        is_spare=is_spare,
        state=State.PENDING,
        state_since=timezone.now(),
        state_actor=actor.name,
        state_reason=reason[:REASON_LENGTH],
        **columns,
    )
    create(replica, _taken(replica.url), "url")
    record(
        actor=actor,
        verb="replica.create",
        target=("replica", replica.public_id),
        reason=reason,
        change=(None, {"pool": pool.slug, "node": node.name, "gpu_indices": replica.gpu_indices}),
        touches_fleet=True,
    )
    return replica


@transaction.atomic
def promote_spare(*, replica_id: str, actor: Actor, reason: str) -> Replica:
    """Let a warm spare take traffic: it is loaded already."""
    replica = found(Replica.objects.select_related("pool"), "replica", public_id=replica_id)
    edit(replica, {"is_spare": False}, replica.version, "")
    record(
        actor=actor, verb="replica.promote", target=("replica", replica_id), reason=reason,
        change=({"is_spare": True}, {"is_spare": False}), touches_fleet=True,
    )  # fmt: skip
    return replica


@transaction.atomic
def update_replica(
    *,
    replica_id: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[ReplicaFields],
) -> Replica:
    """Change how a replica is reached; its address only while it has no traffic."""
    replica = found(Replica.objects.select_related("node"), "replica", public_id=replica_id)
    columns = _columns(changes)
    if columns.get("url", replica.url) != replica.url and replica.state not in WITHOUT_TRAFFIC:
        raise Conflict(
            f"Replica {replica_id} is {replica.state}: drain it before changing its address.",
            field="url",
        )
    before = plain(replica, columns)
    for name, value in columns.items():
        setattr(replica, name, value)
    _check_gpus(replica)
    edit(replica, columns, expected_version, _taken(replica.url))
    record(
        actor=actor,
        verb="replica.update",
        target=("replica", replica_id),
        reason=reason,
        change=(before, plain(replica, columns)),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return replica


@transaction.atomic
def delete_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Forget a replica that has no traffic: stopped, failed, or not yet ready."""
    replica = found(Replica.objects.all(), "replica", public_id=replica_id)
    refuse_if_moved(replica, expected_version)
    deleted, _ = Replica.objects.filter(pk=replica.pk, state__in=WITHOUT_TRAFFIC).delete()
    if not deleted:
        raise Conflict(
            f"Replica {replica_id} is {replica.state}: drain it, then delete it when it has"
            " stopped.",
            code="in_use",
        )
    record(
        actor=actor,
        verb="replica.delete",
        target=("replica", replica_id),
        reason=reason,
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))


def _columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn fields as callers write them into columns: a URL's one spelling, a node for its name."""
    columns = dict(fields)
    if "url" in columns:
        columns["url"] = checked_origin(columns["url"])
    engines = get_args(wire.EngineName)
    if columns.get("engine", "vllm") not in engines:
        raise Invalid(f"engine must be one of {', '.join(engines)}.", field="engine")
    if columns.get("node"):
        columns["node"] = found(Node.objects.all(), "node", "node", name=columns["node"])
    elif "node" in columns:
        columns["node"] = None
    return columns


def _check_gpus(replica: Replica) -> None:
    """Refuse GPUs that the node is known not to have."""
    wanted = replica.gpu_indices
    if not isinstance(wanted, list) or not all(type(i) is int and i >= 0 for i in wanted):
        raise Invalid("gpu_indices must be a list of whole numbers from 0.", field="gpu_indices")
    if replica.node is None or not replica.node.gpus:
        return
    known = {gpu["index"] for gpu in replica.node.gpus}
    missing = [i for i in wanted if i not in known]
    if missing:
        raise Invalid(
            f"Node {replica.node.name!r} has GPUs {sorted(known)}, not {missing}.",
            field="gpu_indices",
        )


def _taken(url: str) -> str:
    return f"There is already a live replica at {url}: one process is one replica."
