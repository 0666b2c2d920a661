"""Policies that go by turns, by chance or by load alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core.chance import Chance
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica

# Load is compared exactly up to this many replicas; above, among a random sample of this size, so
# that the cost of a choice does not grow with the pool (best of 32: top 3 % on average).
EXACT_UP_TO: Final = 128
SAMPLE: Final = 32


def next_turn(pool: Candidates, count: int) -> int:
    """Give the pool's next turn: ties and rounds do not always start at the same replica."""
    pool.cursor += 1
    return pool.cursor % count


class Blind:
    """What policies share that look at no replica."""

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Nothing is compared."""
        return {}


class RoundRobin(Blind):
    """Each usable replica in its turn, whatever its load."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the next one."""
        return Pick(usable[next_turn(pool, len(usable))], "load", "its turn")


class Random(Blind):
    """Any usable replica, with the same chance."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick one by chance."""
        return Pick(usable[chance.randrange(len(usable))], "load", "by chance")


class LeastRequests:
    """The replica with the fewest requests under way for its weight."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the least loaded one; ties go round."""
        usable = sampled(usable, chance)
        best = usable[0]
        least = float("inf")
        turn = next_turn(pool, len(usable))
        for replica in (*usable[turn:], *usable[:turn]):
            ramps = replica.ramp_from is not None
            weight = replica.weight(now) if ramps else replica.endpoint.weight
            score = (replica.inflight_requests + 1) / weight
            if score < least:
                best, least = replica, score
        return Pick(best, "load", "fewest requests in flight")

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Requests in flight with this one, over the weight."""
        weight = replica.weight(now)
        running = float(replica.inflight_requests)
        return {"inflight_requests": running, "weight": weight, "score": (running + 1) / weight}


class LeastTokens:
    """The replica with the fewest tokens under way for its weight, this request's included."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the least loaded one; ties go round."""
        usable = sampled(usable, chance)
        best = usable[0]
        least = float("inf")
        tokens = request.tokens + 1
        turn = next_turn(pool, len(usable))
        for replica in (*usable[turn:], *usable[:turn]):
            ramps = replica.ramp_from is not None
            weight = replica.weight(now) if ramps else replica.endpoint.weight
            score = (replica.inflight_tokens + tokens) / weight
            if score < least:
                best, least = replica, score
        return Pick(best, "load", "fewest tokens in flight")

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Tokens in flight with this request's, over the weight."""
        return {
            "inflight_tokens": float(replica.inflight_tokens),
            "weight": replica.weight(now),
            "score": _load(request, replica, now),
        }


class PowerOfTwo:
    """The less loaded of two replicas taken by chance, in tokens for their weight."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the less loaded of two that differ."""
        first = chance.randrange(len(usable))
        second = (first + 1 + chance.randrange(len(usable) - 1)) % len(usable)
        one, other = usable[first], usable[second]
        if _load(request, other, now) < _load(request, one, now):
            one = other
        return Pick(one, "load", "fewer tokens in flight of two by chance")

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Tokens in flight with this request's, over the weight."""
        return LEAST_TOKENS.terms(request, replica, now=now)


def _load(request: RouteRequest, replica: Replica, now: float) -> float:
    return (replica.inflight_tokens + request.tokens + 1) / replica.weight(now)


def sampled(usable: Sequence[Replica], chance: Chance) -> Sequence[Replica]:
    if len(usable) <= EXACT_UP_TO:
        return usable
    count = len(usable)
    return [usable[chance.randrange(count)] for _ in range(SAMPLE)]


LEAST_TOKENS: Final = LeastTokens()
