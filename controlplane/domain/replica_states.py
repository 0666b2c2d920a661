"""The life of a replica as one table: which event leads from which state to which.

pending → loading → warming → ready → draining → stopped, with ejected, sleeping, waking and failed
beside it. `warming` answers but is not yet trusted with traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    EJECTED = "ejected"
    SLEEPING = "sleeping"
    WAKING = "waking"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Event(StrEnum):
    START = "start"  # its process was asked for
    ANSWERS = "answers"  # health is good
    WARMED = "warmed"  # gave a first completion
    OUTLIER = "outlier"  # taken out for its health, or by an operator
    RECOVERED = "recovered"
    SLEEP = "sleep"
    WAKE = "wake"
    AWAKE = "awake"
    DRAIN = "drain"
    CANCELLED = "cancelled"  # a drain was called off
    EMPTY = "empty"  # nothing in flight any more
    DEADLINE = "deadline"
    GONE = "gone"  # the process is gone
    GIVE_UP = "give_up"


_GONE: dict[Event, State] = {Event.GONE: State.FAILED, Event.DEADLINE: State.FAILED}

MOVES: Mapping[State, Mapping[Event, State]] = {
    State.PENDING: {Event.START: State.LOADING, Event.GIVE_UP: State.STOPPED},
    State.LOADING: {
        **_GONE,
        Event.ANSWERS: State.WARMING,
        Event.DRAIN: State.DRAINING,
        Event.GIVE_UP: State.STOPPED,
    },
    State.WARMING: {**_GONE, Event.WARMED: State.READY, Event.GIVE_UP: State.STOPPED},
    State.READY: {
        **_GONE,
        Event.OUTLIER: State.EJECTED,
        Event.DRAIN: State.DRAINING,
        Event.SLEEP: State.SLEEPING,
    },
    State.EJECTED: {
        **_GONE,
        Event.RECOVERED: State.READY,
        Event.DRAIN: State.DRAINING,
        Event.GIVE_UP: State.STOPPED,
    },
    State.SLEEPING: {
        **_GONE,
        Event.WAKE: State.WAKING,
        Event.DRAIN: State.DRAINING,
        Event.GIVE_UP: State.STOPPED,
    },
    State.WAKING: {**_GONE, Event.AWAKE: State.READY},
    State.DRAINING: {
        Event.CANCELLED: State.READY,
        Event.EMPTY: State.STOPPED,
        Event.DEADLINE: State.STOPPED,
        Event.GONE: State.FAILED,
    },
    State.FAILED: {Event.START: State.LOADING, Event.GIVE_UP: State.STOPPED},
    # A drained static replica is somebody else's process: it may be taken back.
    State.STOPPED: {Event.START: State.LOADING},
}


def next_state(state: State, event: Event) -> State | None:
    """Give the state that `event` leads to, or None when it means nothing in `state`."""
    return MOVES[state].get(event)


def states_accepting(event: Event) -> frozenset[State]:
    """Give the states in which `event` means something."""
    return frozenset(state for state, moves in MOVES.items() if event in moves)
