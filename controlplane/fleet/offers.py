"""What an operator may do with a replica: each action with its effect, or why not now."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain.amounts import counted
from controlplane.domain.replica_states import Event, State, next_state
from controlplane.fleet.models import Replica
from controlplane.telemetry.live import ReplicaNow


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action on a replica: what it does, or why it is not possible now."""

    name: str
    label: str
    effect: str = ""
    confirm: str = ""
    disabled: str = ""
    danger: bool = False


def offers(replica: Replica, now: ReplicaNow, *, ready_in_pool: int) -> tuple[Offer, ...]:
    """Say what an operator may do with a replica, with the effect, or why not now."""
    state = State(replica.state)
    left = ready_in_pool - (state is State.READY)
    pool_after = f"Pool {replica.pool.slug} keeps {left} ready."
    if left == 0:
        pool_after = f"No replica of pool {replica.pool.slug} stays ready: its requests get 503."
    busy = _streams(now.inflight_requests)
    ejecting = f"Nothing new is sent to it until somebody restores it. {pool_after}"
    draining = f"{busy}; nothing new comes. {pool_after}"
    return (
        _offer(state, Event.DRAIN, "Drain", draining, left),
        _offer(state, Event.OUTLIER, "Eject", ejecting, left),
        _restore(replica),
    )


def _streams(in_flight: int | None) -> str:
    if in_flight is None:
        return "Streams now running finish"
    if not in_flight:
        return "No request is in flight: none has to finish"
    return f"{counted(in_flight, 'requests')} in flight may finish"


def _offer(state: State, event: Event, label: str, effect: str, left: int) -> Offer:
    name = label.lower()
    confirm = f"{label} replica"
    if next_state(state, event) is None:
        return Offer(name=name, label=label, disabled=f"not possible while {state.value}")
    return Offer(name=name, label=label, effect=effect, confirm=confirm, danger=left == 0)


def _restore(replica: Replica) -> Offer:
    effects = {
        State.EJECTED: "It gets traffic again, slowly at first.",
        State.DRAINING: "The drain is called off and it gets traffic again.",
        State.STOPPED: "It is probed again and gets traffic once it answers.",
        State.FAILED: "It is probed again and gets traffic once it answers.",
    }
    effect = effects.get(State(replica.state))
    if effect is None:
        return Offer(name="restore", label="Restore", disabled="nothing to restore it from")
    return Offer(name="restore", label="Restore", effect=effect, confirm="Restore replica")
