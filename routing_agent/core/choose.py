"""Picks a replica and says why: the only place where policies meet.

`choose` filters (each exclusion with its reason) and asks the pool's policy to pick among the rest.
It changes nothing but the pool's turn: charging is the caller's next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from routing_agent.core.chance import Chance
from routing_agent.core.replica import Replica
from routing_agent.core.ring import Ring, load_ceiling
from routing_agent.wire import Candidate, PolicyName, PoolSettings

Route = Literal["affinity", "prefix", "load", "hash", "only", "fallback", "cascade", "retry"]

# Load is compared exactly up to this many replicas; above, among a random sample of this size, so
# that the cost of a choice does not grow with the pool (best of 32: top 3 % on average).
EXACT_UP_TO: Final = 128
SAMPLE: Final = 32

FULL: Final = "full: at its concurrency ceiling"
NOT_RESIDENT: Final = "the adapter is not loaded here"
TRIED: Final = "already tried for this request"


class RouteRequest(msgspec.Struct):
    """All that a choice may know of a request. Later policies add fields with defaults."""

    tokens: int  # what it will be charged with
    session: int  # 64-bit hash of tenant and session
    tried: tuple[str, ...] = ()  # replicas not to choose again
    adapter: str = ""  # what the replica must hold


class Choice(msgspec.Struct):
    """The verdict: a replica with route and reason, or none and why."""

    replica: Replica | None
    route: Route = "load"
    reason: str = ""
    is_full: bool = False  # none was free, but some would be with more room
    candidates: tuple[Candidate, ...] = ()  # only when explaining


class Candidates(Protocol):
    """The replicas of one pool and what its policies remember between choices."""

    settings: PoolSettings
    cursor: int

    @property
    def replicas(self) -> Sequence[Replica]:
        """All replicas of the pool, whatever their state."""
        ...

    def ring(self) -> Ring:
        """Give the pool's hash ring."""
        ...

    def by_id(self, replica: str) -> Replica | None:
        """Give a replica of the pool."""
        ...


class Pick(msgspec.Struct):
    """What a policy picked, and why."""

    replica: Replica
    route: Route
    reason: str


class Policy(Protocol):
    """One way to pick among usable replicas (at least two). Pure but for the pool's cursor."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick one of `usable`."""
        ...

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Give the figures this policy compares, the deciding one under "score" (least wins)."""
        ...


def choose(
    request: RouteRequest,
    pool: Candidates,
    *,
    now: float,
    chance: Chance,
    explain: bool = False,
) -> Choice:
    """Choose a replica of `pool` for `request`."""
    usable = _usable(request, pool, now)
    if not usable:
        choice = Choice(None, reason=_why_none(request, pool, now))
        choice.is_full = choice.reason == FULL
    elif len(usable) == 1:
        choice = Choice(usable[0], "only", "the only replica that may take it")
    else:
        policy = POLICIES[pool.settings.policy]
        pick = policy.pick(request, usable, pool, now=now, chance=chance)
        choice = Choice(pick.replica, pick.route, pick.reason)
    if request.tried and choice.replica is not None:
        choice.route = "retry"
    if explain:
        choice.candidates = tuple(_explained(request, r, pool, now) for r in pool.replicas)
    return choice


def exclusion(request: RouteRequest, replica: Replica, now: float) -> str:
    """Say why `replica` may not take `request`, or ""."""
    if request.adapter and request.adapter not in replica.adapters.resident:
        return NOT_RESIDENT
    reason = replica.exclusion(now)
    if reason:
        return reason
    if replica.id in request.tried:
        return TRIED
    return "" if replica.has_room() else FULL


def _usable(request: RouteRequest, pool: Candidates, now: float) -> list[Replica]:
    if request.tried or request.adapter:
        return [r for r in pool.replicas if not exclusion(request, r, now)]
    return [
        r
        for r in pool.replicas
        if (not r.blocked or not r.exclusion(now))
        and (r.ceiling is None or r.inflight_requests < r.ceiling)
    ]


def _why_none(request: RouteRequest, pool: Candidates, now: float) -> str:
    reasons = [exclusion(request, r, now) for r in pool.replicas]
    if not reasons:
        return "the pool has no replicas"
    if FULL in reasons:
        return FULL
    counts = {reason: reasons.count(reason) for reason in reasons}
    return "; ".join(f"{n} of {len(reasons)}: {reason}" for reason, n in counts.items())


def _explained(request: RouteRequest, replica: Replica, pool: Candidates, now: float) -> Candidate:
    terms = POLICIES[pool.settings.policy].terms(request, replica, now=now)
    return Candidate(
        replica=replica.id,
        score=terms.get("score"),
        terms=terms,
        excluded=exclusion(request, replica, now),
    )


def _turn(pool: Candidates, count: int) -> int:
    """Give the pool's next turn: ties and rounds do not always start at the same replica."""
    pool.cursor += 1
    return pool.cursor % count


class RoundRobin:
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
        return Pick(usable[_turn(pool, len(usable))], "load", "its turn")

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Nothing is compared."""
        return {}


class Random:
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

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Nothing is compared."""
        return {}


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
        usable = _sampled(usable, chance)
        best = usable[0]
        least = float("inf")
        turn = _turn(pool, len(usable))
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
        usable = _sampled(usable, chance)
        best = usable[0]
        least = float("inf")
        tokens = request.tokens + 1
        turn = _turn(pool, len(usable))
        for replica in (*usable[turn:], *usable[:turn]):
            ramps = replica.ramp_from is not None
            weight = replica.weight(now) if ramps else replica.endpoint.weight
            score = (replica.inflight_tokens + tokens) / weight
            if score < least:
                best, least = replica, score
        return Pick(best, "load", "fewest tokens in flight")

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Tokens in flight with this request's, over the weight."""
        weight = replica.weight(now)
        tokens = float(replica.inflight_tokens)
        score = (tokens + request.tokens + 1) / weight
        return {"inflight_tokens": tokens, "weight": weight, "score": score}


class ConsistentHash:
    """The session's own replica on the ring, or the next one that has room."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the first usable replica clockwise that is not over the load bound."""
        ceiling = load_ceiling(
            total_tokens=sum(r.inflight_tokens for r in usable),
            request_tokens=request.tokens,
            replicas=len(usable),
            bound=pool.settings.ring_bound,
        )
        allowed = {r.id for r in usable}
        first = True
        for replica_id in pool.ring().walk(request.session):
            replica = pool.by_id(replica_id)
            if replica is None or replica_id not in allowed:
                continue
            if replica.inflight_tokens + request.tokens <= ceiling:
                reason = "the session's replica" if first else "the session's replica is loaded"
                return Pick(replica, "affinity" if first else "hash", reason)
            first = False
        return LEAST_TOKENS.pick(request, usable, pool, now=now, chance=chance)

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """The load that is held against the bound; the ring decides, not the least."""
        return {"inflight_tokens": float(replica.inflight_tokens)}


def _sampled(usable: Sequence[Replica], chance: Chance) -> Sequence[Replica]:
    if len(usable) <= EXACT_UP_TO:
        return usable
    count = len(usable)
    return [usable[chance.randrange(count)] for _ in range(SAMPLE)]


LEAST_TOKENS: Final = LeastTokens()
POLICIES: Final[dict[PolicyName, Policy]] = {
    "round_robin": RoundRobin(),
    "random": Random(),
    "least_requests": LeastRequests(),
    "least_tokens": LEAST_TOKENS,
    "consistent_hash": ConsistentHash(),
}
