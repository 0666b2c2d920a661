"""Every move of a replica's life, all through `take_step`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain import pool_settings
from controlplane.domain.errors import Conflict
from controlplane.domain.replica_states import Event, State, next_state, states_accepting
from controlplane.fleet.models import Replica, ReplicaMove
from controlplane.fleet.services.editing import found, refuse_if_moved
from controlplane.locking import stale
from controlplane.wake import waker

REASON_LENGTH = 300

# What an operator calls these events; the others are recorded by their own names.
_VERBS: Mapping[Event, str] = {
    Event.OUTLIER: "replica.eject",
    Event.RECOVERED: "replica.restore",
    Event.CANCELLED: "replica.restore",
    Event.START: "replica.start",
}

# How an operator's "restore" reads in each state that has a way back.
_WAYS_BACK: Mapping[State, Event] = {
    State.EJECTED: Event.RECOVERED,
    State.DRAINING: Event.CANCELLED,
    State.STOPPED: Event.START,
    State.FAILED: Event.START,
}


@transaction.atomic
def move_replica(
    *,
    replica_id: str,
    event: Event,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
) -> Replica:
    """Take one step of a replica's life.

    Raises:
        Conflict: when `event` means nothing in the replica's state, or somebody moved it first.
    """
    replica = _find(replica_id, expected_version)
    return _moved(replica, event, actor=actor, reason=reason)


@transaction.atomic
def drain_replica(
    *,
    replica_id: str,
    actor: Actor,
    reason: str,
    limit_s: float | None = None,
    expected_version: int | None = None,
) -> Replica:
    """Stop new work on a replica; running streams go on until the drain deadline."""
    replica = _find(replica_id, expected_version)
    return _moved(replica, Event.DRAIN, actor=actor, reason=reason, drain_limit_s=limit_s)


@transaction.atomic
def eject_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> Replica:
    """Take a replica out until an operator restores it; one out for its health stays out."""
    replica = _find(replica_id, expected_version)
    if replica.state == State.EJECTED and not replica.ejected_by_operator:
        return _held_out(replica, actor=actor, reason=reason)
    return _moved(replica, Event.OUTLIER, actor=actor, reason=reason)


@transaction.atomic
def restore_replica(
    *, replica_id: str, actor: Actor, reason: str, expected_version: int | None = None
) -> Replica:
    """Bring a replica back: from ejected, by cancelling its drain, or from stopped or failed."""
    replica = _find(replica_id, expected_version)
    event = _WAYS_BACK.get(State(replica.state))
    if event is None:
        raise Conflict(
            f"Replica {replica_id} is {replica.state}: there is nothing to restore it from.",
            code="state_conflict",
        )
    return _moved(replica, event, actor=actor, reason=reason)


def take_step(
    replica: Replica,
    event: Event,
    *,
    actor: Actor,
    reason: str,
    drain_limit_s: float | None = None,
) -> None:
    """Write one move by compare-and-set on state and version, with its entry in the replica's life.

    This is the only place that writes `Replica.state` after creation.
    """
    before = State(replica.state)
    after = next_state(before, event)
    if after is None:
        raise Conflict(_means_nothing(replica, event), code="state_conflict")
    now = timezone.now()
    columns = _columns_on_arrival(replica, after, actor=actor, now=now, limit_s=drain_limit_s)
    columns |= {
        "state": after,
        "state_since": now,
        "state_reason": reason[:REASON_LENGTH],
        "state_actor": actor.name,
    }
    _write(replica, columns)
    ReplicaMove.objects.create(
        replica=replica,
        at=now,
        from_state=before,
        to_state=after,
        reason=reason[:REASON_LENGTH],
        actor=actor.name,
    )


def _find(replica_id: str, expected_version: int | None) -> Replica:
    replica = found(Replica.objects.select_related("pool"), "replica", public_id=replica_id)
    refuse_if_moved(replica, expected_version)
    return replica


def _moved(
    replica: Replica,
    event: Event,
    *,
    actor: Actor,
    reason: str,
    drain_limit_s: float | None = None,
) -> Replica:
    before = replica.state
    take_step(replica, event, actor=actor, reason=reason, drain_limit_s=drain_limit_s)
    _record(replica, _VERBS.get(event, f"replica.{event}"), before, actor=actor, reason=reason)
    return replica


def _held_out(replica: Replica, *, actor: Actor, reason: str) -> Replica:
    """Turn an ejection for health, which would heal by itself, into an operator's."""
    _write(
        replica,
        {
            "ejected_by_operator": True,
            "state_reason": reason[:REASON_LENGTH],
            "state_actor": actor.name,
        },
    )
    _record(replica, "replica.eject", replica.state, actor=actor, reason=reason)
    return replica


def _record(replica: Replica, verb: str, before: str, *, actor: Actor, reason: str) -> None:
    event = record(
        actor=actor,
        verb=verb,
        target=("replica", replica.public_id),
        reason=reason,
        change=({"state": before}, {"state": replica.state}),
        touches_fleet=True,
    )
    if replica.state == State.DRAINING:
        # Agents whose table covers this revision know of the drain.
        replica.drain_revision = event.fleet_revision
        Replica.objects.filter(pk=replica.pk).update(drain_revision=event.fleet_revision)
    transaction.on_commit(waker("routing.publish"))


def _write(replica: Replica, columns: dict[str, Any]) -> None:
    rows = Replica.objects.filter(pk=replica.pk, state=replica.state, version=replica.version)
    try:
        with transaction.atomic():
            written = rows.update(**columns, version=F("version") + 1)
    except IntegrityError as error:
        raise Conflict(
            f"Another live replica is at {replica.url} by now: move or delete that one first.",
            code="exists",
        ) from error
    if not written:
        raise stale(f"Replica {replica.public_id}")
    replica.refresh_from_db()


def _columns_on_arrival(
    replica: Replica, after: State, *, actor: Actor, now: datetime, limit_s: float | None
) -> dict[str, Any]:
    """Give what a state carries beside its name."""
    columns: dict[str, Any] = {
        "ejected_by_operator": after is State.EJECTED and actor.kind != "loop",
        "drain_deadline_at": None,
        "drain_revision": None,
    }
    if after is State.DRAINING:
        settings, _ = pool_settings.resolved_as_far_as_possible(replica.pool.settings)
        columns["drain_deadline_at"] = now + timedelta(seconds=limit_s or settings.drain_limit_s)
    if after is State.LOADING:
        columns |= {"ready_at": None, "starts": replica.starts + 1}
    if after is State.FAILED:
        columns["failures"] = replica.failures + 1
    if after is State.READY:
        columns["failures"] = 0
    if after is State.READY and _starts_afresh(replica, actor):
        columns["ready_at"] = now
    return columns


def _starts_afresh(replica: Replica, actor: Actor) -> bool:
    """Say whether a replica now ready begins a slow start.

    Not after a cancelled drain, whose caches are warm, and not when the loop notes a recovery: the
    agents saw that first and ramp by themselves.
    """
    if replica.state == State.EJECTED:
        return actor.kind != "loop"
    return replica.state != State.DRAINING


def _means_nothing(replica: Replica, event: Event) -> str:
    allowed = ", ".join(sorted(states_accepting(event)))
    return (
        f"Replica {replica.public_id} is {replica.state}; '{event}' is possible only when it is"
        f" {allowed}."
    )
