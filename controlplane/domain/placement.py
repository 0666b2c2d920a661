"""Which replicas hold which adapters, which are evicted first, and when a new version takes over.

Placement is a level: the same wishes and seats always give the same plan, and what is held already
stays where it is unless something that is wanted more needs its slot. Every adapter gets one
replica before any gets a second, so that no slot is spent on copies while an adapter has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    has_node: bool = True
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


def place(
    wishes: Sequence[Wish], seats: Sequence[Seat], *, explained: Collection[str] | None = None
) -> Plan:
    """Say what each replica is to hold.

    What is held stays. A pinned adapter takes a slot of every replica that can hold it; each other
    one that is held nowhere takes a free slot, else that of a second copy, else that of one used
    less recently. Then free slots are filled, the most recently used first. This is repeated until
    it changes nothing, so that carrying a plan out is the end of it.

    Args:
        explained: served names of which it is said where they are missing, and why; None: of all.
    """
    by_model: dict[str, list[Seat]] = {}
    for seat in seats:
        if seat.state in _SEATED:
            by_model.setdefault(seat.model, []).append(seat)
    wanted = sorted(wishes, key=_order)
    board = _Board(wanted, by_model)
    while board.improve():
        pass
    held = {seat.replica: frozenset(board.held.get(seat.replica, ())) for seat in seats}
    return Plan(
        held=held,
        left_out=tuple(
            gap
            for wish in wanted
            if explained is None or wish.served_name in explained
            for gap in _left_out(wish, by_model.get(wish.model, ()), held)
        ),
    )


class _Board:
    """What each replica holds while a plan is being made."""

    def __init__(self, wanted: Sequence[Wish], by_model: Mapping[str, Sequence[Seat]]) -> None:
        self.wanted = wanted
        self.place_of = {wish.served_name: n for n, wish in enumerate(wanted)}  # 0 comes first
        self.pinned = {wish.served_name for wish in wanted if wish.pinned}
        self.able = {
            wish.served_name: [s for s in by_model.get(wish.model, ()) if not _why_not(wish, s)]
            for wish in wanted
        }
        self.held: dict[str, set[str]] = {
            seat.replica: self._kept(seat) for seats in by_model.values() for seat in seats
        }
        self.copies = Counter(name for names in self.held.values() for name in names)

    def _kept(self, seat: Seat) -> set[str]:
        """Give what a replica holds and may go on holding, the first of it if slots became few."""
        may = [n for n in seat.holds if n in self.able and seat in self.able[n]]
        return set(sorted(may, key=self.place_of.__getitem__)[: seat.slots])

    def improve(self) -> bool:
        """Go through all wishes once; say whether anything was put anywhere."""
        is_changed = False
        for wish in self.wanted:
            for seat in self._seats_needed(wish):
                is_changed |= self._put(wish.served_name, seat)
        for wish in self.wanted:
            for seat in self.able[wish.served_name]:
                if len(self.held[seat.replica]) < seat.slots:
                    is_changed |= self._put(wish.served_name, seat)
        return is_changed

    def _seats_needed(self, wish: Wish) -> list[Seat]:
        """Give the replicas on which an adapter must be: all if pinned, else one if it has none."""
        able = self.able[wish.served_name]
        if wish.pinned:
            return able
        if self.copies[wish.served_name] or not able:
            return []
        return [min(able, key=lambda seat: self._price(wish.served_name, seat))]

    def _price(self, name: str, seat: Seat) -> tuple[int, int, str]:
        """Rank a replica for an adapter: a free slot, a second copy, one that comes later."""
        free = seat.slots - len(self.held[seat.replica])
        if free > 0:
            return (0, -free, seat.replica)
        victim = self._victim(name, seat)
        if victim is None:
            return (3, 0, seat.replica)
        return (1 if self.copies[victim] > 1 else 2, -self.place_of[victim], seat.replica)

    def _victim(self, name: str, seat: Seat) -> str | None:
        """Give what would make room for an adapter; None: nothing on that replica must."""
        own = self.place_of[name]
        candidates = [
            (self.copies[held] > 1 and name not in self.pinned, self.place_of[held], held)
            for held in self.held[seat.replica] - self.pinned
            if self.place_of[held] > own or (self.copies[held] > 1 and name not in self.pinned)
        ]
        return max(candidates)[2] if candidates else None

    def _put(self, name: str, seat: Seat) -> bool:
        names = self.held[seat.replica]
        if name in names:
            return False
        if len(names) >= seat.slots:
            victim = self._victim(name, seat)
            if victim is None:
                return False
            names.remove(victim)
            self.copies[victim] -= 1
        names.add(name)
        self.copies[name] += 1
        return True


def _order(wish: Wish) -> tuple[bool, float, str, bool, str]:
    """Order by who comes first; a new version comes before the one it replaces.

    Otherwise it would never be loaded where there is room for one.
    """
    return (not wish.pinned, -wish.used_at, wish.adapter, wish.active, wish.served_name)


def _why_not(wish: Wish, seat: Seat) -> str:
    if seat.engine not in LOADING_ENGINES:
        return f"{seat.engine} engines load no adapters while they run"
    if not seat.has_node:
        return "it is registered without its node, whose agent would load adapters into it"
    if not seat.has_agent:
        return "no agent of ours runs on its node, so nobody can load adapters into it"
    if not seat.slots:
        return f"adapter_slots of pool {seat.pool} is 0, or was when this engine was started"
    if wish.rank > seat.max_rank:
        return f"its rank {wish.rank} exceeds {seat.max_rank}, the limit of pool {seat.pool}"
    return ""


def _left_out(
    wish: Wish, seats: Sequence[Seat], held: Mapping[str, frozenset[str]]
) -> Iterator[LeftOut]:
    for seat in seats:
        if wish.served_name not in held[seat.replica]:
            slots = f"all {seat.slots} adapter slots are taken by adapters used more recently"
            reason = _why_not(wish, seat) or slots
            yield LeftOut(served_name=wish.served_name, replica=seat.replica, reason=reason)


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
