"""What happens next to a replica, by what live agents say of it.

Silence never moves anything: an agent that is not heard, or says nothing of a replica, is no
evidence. Only a drain has a deadline that needs no witness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.replica_states import Event, State
from routing_agent.wire import ReplicaReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as the database knows it."""

    replica: str
    state: State
    ejected_by_operator: bool = False
    is_spare: bool = False  # stays warm and out of traffic until it is promoted
    drain_revision: int | None = None  # the fleet revision whose table says "draining"
    drain_deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one live agent says of one replica in its newest report.

    `revision` is the fleet revision its table covers by that same report; `report` is None when the
    agent says nothing of this replica.
    """

    agent: str
    revision: int
    report: ReplicaReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An event and why it happened, shown to operators as it stands."""

    event: Event
    reason: str


def next_move(replica: ReplicaView, sightings: Sequence[Sighting], *, now: datetime) -> Move | None:
    """Say what happens next to `replica`; None when nothing is known that should move it."""
    decide = _DECISIONS.get(replica.state)
    return decide(replica, sightings, now) if decide else None


def _loading(replica: ReplicaView, sightings: Sequence[Sighting], now: datetime) -> Move | None:
    healthy = _seen_as("healthy", sightings)
    if not healthy:
        return None
    return Move(event=Event.ANSWERS, reason=f"answers health checks of {_names(healthy)}")


def _warming(replica: ReplicaView, sightings: Sequence[Sighting], now: datetime) -> Move | None:
    warm = [s for s in _seen_as("healthy", sightings) if s.report and s.report.warmed]
    if not warm or replica.is_spare:
        return None
    return Move(event=Event.WARMED, reason=f"gave a first completion to {_names(warm)}")


def _ready(replica: ReplicaView, sightings: Sequence[Sighting], now: datetime) -> Move | None:
    told = [s for s in sightings if s.report is not None]
    bad = _seen_as("unhealthy", sightings)
    if not bad or len(bad) < len(told):
        return None
    why = next((s.report.health_reason for s in bad if s.report and s.report.health_reason), "")
    seen = f"unhealthy for every agent that sees it ({_names(bad)})"
    return Move(event=Event.OUTLIER, reason=f"{seen}: {why}" if why else seen)


def _ejected(replica: ReplicaView, sightings: Sequence[Sighting], now: datetime) -> Move | None:
    healthy = _seen_as("healthy", sightings)
    if replica.ejected_by_operator or not healthy:
        return None
    return Move(event=Event.RECOVERED, reason=f"healthy again for {_names(healthy)}")


def _draining(replica: ReplicaView, sightings: Sequence[Sighting], now: datetime) -> Move | None:
    if sightings and all(_is_empty_for(s, replica.drain_revision) for s in sightings):
        return Move(event=Event.EMPTY, reason=f"nothing in flight at {_names(sightings)}")
    if replica.drain_deadline_at is not None and now >= replica.drain_deadline_at:
        return Move(event=Event.DEADLINE, reason="the drain limit passed")
    return None


def _is_empty_for(sighting: Sighting, drain_revision: int | None) -> bool:
    """Say whether an agent that knows of the drain has no request of its own on the replica."""
    knows = drain_revision is None or sighting.revision >= drain_revision
    return knows and sighting.report is not None and sighting.report.inflight_requests == 0


def _seen_as(health: str, sightings: Sequence[Sighting]) -> list[Sighting]:
    return [s for s in sightings if s.report is not None and s.report.health == health]


def _names(sightings: Sequence[Sighting]) -> str:
    names = [s.agent for s in sightings]
    return (
        ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
    )


_Decision = Callable[[ReplicaView, Sequence[Sighting], datetime], Move | None]
_DECISIONS: Mapping[State, _Decision] = {
    State.LOADING: _loading,
    State.WARMING: _warming,
    State.READY: _ready,
    State.EJECTED: _ejected,
    State.DRAINING: _draining,
}
