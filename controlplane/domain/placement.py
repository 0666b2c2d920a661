"""Which replicas hold which adapters, which are evicted first, and when a new version takes over.

Placement is a level: the same wishes and seats always give the same plan, and what is held already
stays where it is unless something that is wanted more needs its slot. Every adapter gets one
replica before any gets a second, so that no slot is spent on copies while an adapter has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.domain.replica_states import State
from routing_agent.wire import AdapterStage

# Engines that load adapters while they run. llama.cpp takes them at its start only.
LOADING_ENGINES: Final = frozenset({"vllm", "sglang"})
# Replicas that are to hold adapters: those that serve, may serve again soon, or are starting.
_SEATED: Final = frozenset({State.LOADING, State.WARMING, State.READY, State.EJECTED})
# A new version waits this long for the slowest replica before the loaded ones are enough.
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One version of an adapter that is to be held somewhere."""

    served_name: str
    adapter: str  # tenant/name, the same for both versions while a new one is being loaded
    model: str
    rank: int
    used_at: float  # Unix seconds: its last request, or its upload if that was later
    pinned: bool = False
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One replica as placement sees it."""

    replica: str
    pool: str
    model: str
    state: State
    engine: str = "vllm"
    slots: int = 8
    max_rank: int = 64
    has_agent: bool = True  # on its node, which would load adapters
    holds: frozenset[str] = frozenset()  # what it is told to hold at present


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """An adapter that a replica of its model does not get, and why."""

    served_name: str
    replica: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each replica is to hold, by served name, and why something is missing."""

    held: Mapping[str, frozenset[str]]
    left_out: tuple[LeftOut, ...] = ()


def place(wishes: Sequence[Wish], seats: Sequence[Seat]) -> Plan:
    """Say what each replica is to hold.

    Pinned adapters come first and take every replica that can hold them; then each other gets one
    replica, the most recently used first; then what is left of the slots is filled in that order.
    """
    held: dict[str, set[str]] = {seat.replica: set() for seat in seats}
    left_out: list[LeftOut] = []
    able: dict[str, list[Seat]] = {}
    wanted = sorted(wishes, key=_order)
    for wish in wanted:
        able[wish.served_name] = _able(wish, seats, left_out)
    for wish in wanted:
        if wish.pinned:
            _fill(wish, able[wish.served_name], held)
        else:
            _one(wish, able[wish.served_name], held)
    for wish in wanted:
        _fill(wish, able[wish.served_name], held)
    for wish in wanted:
        left_out += _without_slot(wish, able[wish.served_name], held)
    return Plan(held={name: frozenset(names) for name, names in held.items()},
                left_out=tuple(left_out))  # fmt: skip


def _order(wish: Wish) -> tuple[bool, float, str, bool, str]:
    """Order by who comes first; a new version comes before the one it replaces.

    Otherwise it would never be loaded where there is room for one.
    """
    return (not wish.pinned, -wish.used_at, wish.adapter, wish.active, wish.served_name)


def _able(wish: Wish, seats: Sequence[Seat], left_out: list[LeftOut]) -> list[Seat]:
    able = []
    for seat in seats:
        if seat.model != wish.model or seat.state not in _SEATED:
            continue
        reason = _why_not(wish, seat)
        if reason:
            left_out.append(
                LeftOut(served_name=wish.served_name, replica=seat.replica, reason=reason)
            )
        else:
            able.append(seat)
    return able


def _why_not(wish: Wish, seat: Seat) -> str:
    if seat.engine not in LOADING_ENGINES:
        return f"{seat.engine} engines load no adapters while they run"
    if not seat.has_agent:
        return "no agent of ours runs on its node, so nobody can load adapters into it"
    if wish.rank > seat.max_rank:
        return f"its rank {wish.rank} exceeds {seat.max_rank}, the limit of pool {seat.pool}"
    return ""


def _has_room(seat: Seat, held: Mapping[str, set[str]]) -> bool:
    return len(held[seat.replica]) < seat.slots


def _one(wish: Wish, able: Sequence[Seat], held: Mapping[str, set[str]]) -> None:
    """Give an adapter one replica: where it is already, else where most slots are free."""
    free = [seat for seat in able if _has_room(seat, held)]
    if free:
        best = min(free, key=lambda s: (wish.served_name not in s.holds,
                                        len(held[s.replica]) - s.slots, s.replica))  # fmt: skip
        held[best.replica].add(wish.served_name)


def _fill(wish: Wish, able: Sequence[Seat], held: Mapping[str, set[str]]) -> None:
    for seat in able:
        if _has_room(seat, held):
            held[seat.replica].add(wish.served_name)


def _without_slot(wish: Wish, able: Sequence[Seat], held: Mapping[str, set[str]]) -> list[LeftOut]:
    return [
        LeftOut(
            served_name=wish.served_name,
            replica=seat.replica,
            reason=f"all {seat.slots} adapter slots are taken by adapters used more recently",
        )
        for seat in able
        if wish.served_name not in held[seat.replica]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """How far one replica is with one version; `None`: nothing was heard of it yet."""

    stage: AdapterStage | None
    for_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Whether the name is to mean the new version from now on."""

    now: bool
    reason: str


def take_over(new: Sequence[Holding], old: Sequence[Holding], *, waiting_s: float) -> Takeover:
    """Say whether a new version takes the name over from the one that is active.

    Args:
        new: the replicas that are to hold the new version.
        old: those that are to hold the active one.
        waiting_s: seconds since the upload.
    """
    loaded = sum(h.stage == "loaded" for h in new)
    failed = sum(h.stage == "failed" for h in new)
    told = f"loaded on {loaded} of {len(new)} replicas"
    if loaded and loaded + failed == len(new):
        return Takeover(now=True, reason=told)
    if loaded and waiting_s >= PATIENCE_S:
        return Takeover(now=True, reason=f"{told} after {waiting_s:.0f} s")
    if not any(h.stage == "loaded" for h in old) and (loaded or not failed):
        return Takeover(now=True, reason="the version before it is loaded nowhere")
    if failed and failed == len(new):
        return Takeover(now=False, reason=f"failed on all {failed} replicas")
    return Takeover(now=False, reason=told)
