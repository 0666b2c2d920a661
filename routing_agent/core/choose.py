"""Picks a replica and says why: the only place where policies meet.

`choose` filters (each exclusion with its reason) and asks the pool's policy to pick among the rest.
It changes nothing but the pool's turn: charging is the caller's next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core.adapters import LONGEST_LOAD_WAIT_S
from routing_agent.core.cache_aware import CacheAware
from routing_agent.core.chance import Chance
from routing_agent.core.expected_ttft import (
    WHOLE_UP_TO,
    Cost,
    ExpectedTtft,
    costs_of,
    shortlist,
)
from routing_agent.core.hash_policy import ConsistentHash
from routing_agent.core.holding import HELD, must_wait
from routing_agent.core.load_policies import (
    LEAST_TOKENS,
    LeastRequests,
    PowerOfTwo,
    Random,
    RoundRobin,
)
from routing_agent.core.policy import Candidates, Policy, Route, RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.core.zones import WORDS, Spill, nearby, spill
from routing_agent.wire import PREFIX_POLICIES, Candidate, PolicyName

FULL: Final = "full: at its concurrency ceiling"
NOT_RESIDENT: Final = "the adapter is not loaded here"
LOADING: Final = "the adapter is being loaded here"
TRIED: Final = "already tried for this request"


class Choice:
    """The verdict: a replica with route and reason, or none and why."""

    __slots__ = ("awaited", "candidates", "is_full", "is_held", "reason", "replica", "route",
                 "spill")  # fmt: skip

    def __init__(
        self,
        replica: Replica | None,
        route: Route = "load",
        reason: str = "",
        awaited: Replica | None = None,
    ) -> None:
        self.replica = replica
        self.route = route
        self.reason = reason
        self.is_full = False  # none was free, but some would be with more room
        self.is_held = False  # each has enough to do: see `core.holding`
        self.awaited = awaited  # worth to be waited for: its adapter is on its way
        self.spill: Spill = ""  # why it leaves its agent's zone
        self.candidates: tuple[Candidate, ...] = ()  # only when explaining


def choose(
    request: RouteRequest,
    pool: Candidates,
    *,
    now: float,
    chance: Chance,
    explain: bool = False,
) -> Choice:
    """Choose a replica of `pool` for `request`."""
    usable: Sequence[Replica] = ()
    if len(pool.replicas) > WHOLE_UP_TO and pool.settings.policy in PREFIX_POLICIES:
        found = shortlist(request, pool, now=now, chance=chance)
        usable = _usable(request, found, now)
    if len(usable) < 2:
        usable = _usable(request, pool.replicas, now)
    if not usable:
        choice = Choice(None, reason=_why_none(request, pool, now))
        choice.is_full = choice.reason == FULL
    elif request.may_wait and _must_wait(request, usable, pool, now):
        choice = Choice(None, reason=HELD.format(pool.bind_ahead_s))
        choice.is_held = True
    elif len(usable) == 1:
        choice = Choice(usable[0], "only", "the only replica that may take it")
    else:
        near = _near(request, usable, pool, now) if pool.zone else usable
        policy = POLICIES[pool.settings.policy]
        pick = policy.pick(request, near, pool, now=now, chance=chance)
        choice = Choice(pick.replica, pick.route, pick.reason)
    if pool.zone:
        _note_spill(choice, request, usable, pool, now)
    if request.adapter and not choice.is_full and not choice.is_held:
        choice = _or_wait(request, pool, choice, now)
    if request.tried and choice.replica is not None:
        choice.route = "retry"
    if explain:
        choice.candidates = tuple(_explained(request, r, pool, now) for r in pool.replicas)
    return choice


def exclusion(request: RouteRequest, replica: Replica, now: float) -> str:
    """Say why `replica` may not take `request`, or ""."""
    if request.adapter and request.adapter not in replica.adapters.resident:
        wait_s = replica.adapters.load_wait_s(request.adapter, now)
        return NOT_RESIDENT if wait_s is None or replica.exclusion(now) else LOADING
    reason = replica.exclusion(now)
    if reason:
        return reason
    if replica.id in request.tried:
        return TRIED
    return "" if replica.has_room() else FULL


def _near(
    request: RouteRequest, usable: Sequence[Replica], pool: Candidates, now: float
) -> Sequence[Replica]:
    """Give the replicas to choose among by a policy that does not reckon with the way."""
    if pool.settings.policy == "expected_ttft":
        return usable
    home = pool.sessions.home(request.session, now - pool.settings.session_lifetime_s)
    return nearby(usable, pool.by_id(home))


def _must_wait(
    request: RouteRequest, usable: Sequence[Replica], pool: Candidates, now: float
) -> bool:
    """Say whether a request is held back; one that was sent before goes on at once."""
    bound_s = pool.bind_ahead_s
    return bound_s > 0 and not request.tried and must_wait(usable, bound_s, pool.agents(now), now)


def _note_spill(
    choice: Choice, request: RouteRequest, usable: Sequence[Replica], pool: Candidates, now: float
) -> None:
    """Say why a request leaves its agent's zone, if it does."""
    if choice.replica is None or not choice.replica.detour_s:
        return
    home = pool.sessions.home(request.session, now - pool.settings.session_lifetime_s)
    is_known = choice.route == "prefix" or home == choice.replica.id
    choice.spill = spill(usable, is_known=is_known)
    choice.reason += f"; {WORDS[choice.spill].format(pool.zone)}"


def _or_wait(request: RouteRequest, pool: Candidates, choice: Choice, now: float) -> Choice:
    """Wait for a replica that is loading the adapter, where that is sooner than any that has it.

    Where nobody has it, it is waited for as long as it is expected within `LONGEST_LOAD_WAIT_S`.
    """
    coming = [
        replica
        for replica in pool.replicas
        if replica.id not in request.tried
        and replica.has_room()
        and exclusion(request, replica, now) == LOADING
    ]
    if not coming:
        return choice
    has = () if choice.replica is None else (choice.replica,)
    costs = costs_of(request, (*has, *coming), pool, now)
    best = min((cost for cost in costs if cost.load_s), key=_seconds)
    if choice.replica is None:
        if best.load_s > LONGEST_LOAD_WAIT_S:
            return choice
        reason = f"{choice.reason}; expected in {best.load_s:.1f} s on {best.replica.id}"
        return Choice(None, reason=reason, awaited=best.replica)
    own = next(cost for cost in costs if not cost.load_s)
    gain_s = own.seconds - best.seconds
    if best.load_s > LONGEST_LOAD_WAIT_S or gain_s <= pool.settings.session_margin_s:
        return choice
    reason = (
        f"waits {best.load_s:.1f} s for the adapter to be loaded on {best.replica.id}: "
        f"{gain_s:.1f} s less than on {own.replica.id}, which has it"
    )
    return Choice(None, reason=reason, awaited=best.replica)


def _seconds(cost: Cost) -> float:
    return cost.seconds


def _usable(request: RouteRequest, replicas: Sequence[Replica], now: float) -> list[Replica]:
    if request.tried or request.adapter:
        return [r for r in replicas if not exclusion(request, r, now)]
    return [
        r
        for r in replicas
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


POLICIES: Final[dict[PolicyName, Policy]] = {
    "round_robin": RoundRobin(),
    "random": Random(),
    "least_requests": LeastRequests(),
    "least_tokens": LEAST_TOKENS,
    "power_of_two": PowerOfTwo(),
    "consistent_hash": ConsistentHash(),
    "cache_aware": CacheAware(),
    "expected_ttft": ExpectedTtft(),
}
