"""Which replicas are added, kept or taken away to come from what is to what is wanted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.replica_states import State
from controlplane.domain.scaling import count
from controlplane.domain.scaling_inputs import Member

_LIVE_SPARE = frozenset({State.PENDING, State.LOADING, State.WARMING, State.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What is to be done, by replica."""

    cancel_drains: tuple[str, ...] = ()
    promote: tuple[str, ...] = ()  # warm spares that are to serve
    start: int = 0
    start_spares: int = 0
    drain: tuple[str, ...] = ()
    give_up: tuple[str, ...] = ()  # not serving: stopped without a drain

    @property
    def is_none(self) -> bool:
        """Say whether there is nothing to do."""
        return self == Moves()

    def sentence(self) -> str:
        """Say what is done, in words."""
        parts = [
            _said(len(self.cancel_drains), "takes back {} that drained"),
            _said(len(self.promote), "promotes {} spare"),
            _said(self.start, "starts {}"),
            _said(self.start_spares, "starts {} spare"),
            _said(len(self.drain), "drains {}"),
            _said(len(self.give_up), "gives up {} that did not serve"),
        ]
        return ", ".join(p for p in parts if p) or "nothing to do"


def moves(members: Sequence[Member], *, wanted: int, spares: int, hurried: bool = False) -> Moves:
    """Say how to come to `wanted` serving replicas and `spares` warm ones.

    Going up first takes back what scaling itself drains, then spares, then starts new ones. Going
    down gives up what does not serve and drains the rest, least burdened first. A replica that is
    starting is only given up if people want it (`hurried`).
    """
    counts = count(members)
    if counts.current < wanted:
        up = _up(members, wanted - counts.current)
        return _with_spares(members, up, spares)
    down = _down(members, counts.current - wanted, hurried=hurried)
    return _with_spares(members, down, spares)


def _up(members: Sequence[Member], missing: int) -> Moves:
    draining = [m for m in members if m.state is State.DRAINING and m.drained_by_scaling]
    back = tuple(m.replica for m in draining[:missing])
    missing -= len(back)
    warm = [m for m in members if m.is_spare and m.state is State.WARMING and m.is_warmed]
    promoted = tuple(m.replica for m in warm[:missing])
    return Moves(cancel_drains=back, promote=promoted, start=missing - len(promoted))


def _down(members: Sequence[Member], surplus: int, *, hurried: bool) -> Moves:
    serving = [m for m in members if m.is_run and not m.is_spare and not m.is_lost]
    idle_states = [State.FAILED, State.PENDING] + ([State.LOADING] if hurried else [])
    idle = [m for state in idle_states for m in serving if m.state is state]
    given_up = tuple(m.replica for m in idle[:surplus])
    surplus -= len(given_up)
    return Moves(give_up=given_up, drain=tuple(_victims(serving, surplus)))


def _victims(serving: Sequence[Member], surplus: int) -> list[str]:
    """Give those to drain: out of health first, then from the fullest zone, least in flight."""
    left = [m for m in serving if m.state in (State.READY, State.EJECTED)]
    zones = Counter(m.zone for m in left)
    victims: list[str] = []
    while left and len(victims) < surplus:
        victim = min(left, key=lambda m: (m.state is State.READY, -zones[m.zone],
                                          m.inflight_tokens, m.replica))  # fmt: skip
        left.remove(victim)
        zones[victim.zone] -= 1
        victims.append(victim.replica)
    return victims


def _with_spares(members: Sequence[Member], planned: Moves, spares: int) -> Moves:
    there = [
        m for m in members
        if m.is_spare and m.state in _LIVE_SPARE and m.replica not in planned.promote
    ]  # fmt: skip
    surplus = tuple(m.replica for m in there[spares:])
    return Moves(
        cancel_drains=planned.cancel_drains,
        promote=planned.promote,
        start=planned.start,
        start_spares=max(0, spares - len(there)),
        drain=planned.drain,
        give_up=planned.give_up + surplus,
    )


def _said(n: int, words: str) -> str:
    return words.format(n) if n else ""
