"""What agents of one pool tell one another, many times a second, of what each has under way.

Two agents that choose within the age of a scrape take the same idle replica. So each tells the
others how many requests it has at each replica and how many of their prompt tokens are still to be
computed. Every statement stands for itself: what is lost is told again within half a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from routing_agent.core.replica import Replica
from routing_agent.wire import PolicyName

# How often an agent looks whether there is anything to tell, at most. Told within 20 ms, prompts of
# four agents wait 6 % longer than those of one, told within 250 ms 10 to 14 %: docs/routing.md.
LEAST_PAUSE_S: Final = 0.02
# What it costs all the same grows with those who are told and with the replicas to look at.
MOST_TOLD_PER_S: Final = 400.0
MOST_LOOKED_AT_PER_S: Final = 5000.0
# So often everything is told where prompts wait, as they get less; and where requests only run.
FOLLOWED_S: Final = 0.1
REPEATED_S: Final = 0.5
# That nothing is left is told so many times, as one statement may be lost.
ENDS_TOLD: Final = 3

# By replica: requests under way, and prompt tokens of theirs still to be computed.
Loads = dict[str, tuple[int, float]]

# The policies that count what is told; others look at no more than their own load.
COUNTED_BY: Final[tuple[PolicyName, ...]] = ("expected_ttft",)


class OfPool(Protocol):
    """The part of a pool that is needed here."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All replicas of the pool."""
        ...

    def by_id(self, replica: str) -> Replica | None:
        """Give a replica of the pool."""
        ...


def pause_s(others: int, replicas: int) -> float:
    """Give how long to wait between two statements, with so many to tell and to look at."""
    return max(LEAST_PAUSE_S, others / MOST_TOLD_PER_S, replicas / MOST_LOOKED_AT_PER_S)


class LoadTeller:
    """What one agent told of one pool last, and so what it has to tell now."""

    __slots__ = ("_ended", "_seen", "_told_at")

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # requests under way, and prompts that wait
        self._ended: dict[str, int] = {}  # how many times more that has to be told
        self._told_at = float("-inf")

    def take(self, pool: OfPool, now: float) -> Loads:
        """Give what to tell: all that is under way, if requests came or went or it is time."""
        seen: dict[str, tuple[int, int]] = {}
        for replica in pool.replicas:
            waiting = replica.prefill.waiting
            if waiting or replica.inflight_requests:
                seen[replica.id] = replica.inflight_requests, waiting
        self._ended |= {name: ENDS_TOLD for name in self._seen if name not in seen}
        if seen == self._seen and now < self.again_at:
            return {}
        self._seen, self._told_at = seen, now
        return self._under_way(pool, now) | self._endings()

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to tell until a request comes."""
        return not (self._seen or self._ended)

    @property
    def again_at(self) -> float:
        """When there is something to tell even if nothing comes or goes; infinity is never."""
        if self._ended:
            return self._told_at + LEAST_PAUSE_S
        if self.is_silent:
            return float("inf")
        waits = any(waiting for _, waiting in self._seen.values())
        return self._told_at + (FOLLOWED_S if waits else REPEATED_S)

    def _under_way(self, pool: OfPool, now: float) -> Loads:
        loads: Loads = {}
        for replica in pool.replicas:
            if replica.id in self._seen:
                requests, waiting = self._seen[replica.id]
                tokens = replica.prefill.backlog_tokens(now) if waiting else 0.0
                loads[replica.id] = max(requests, waiting), max(tokens, 0.0)
        return loads

    def _endings(self) -> Loads:
        told: Loads = {replica: (0, 0.0) for replica in self._ended if replica not in self._seen}
        self._ended = {r: self._ended[r] - 1 for r in told if self._ended[r] > 1}
        return told


def hear(pool: OfPool, agent: str, loads: Mapping[str, tuple[int, float]], now: float) -> None:
    """Take in what another agent told of replicas of this pool."""
    for name, (requests, tokens) in loads.items():
        replica = pool.by_id(name)
        if replica is not None:
            replica.hearsay.hear_load(agent, requests, tokens, now)
