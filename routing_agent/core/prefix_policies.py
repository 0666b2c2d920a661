"""Policies that weigh what a replica has cached of a prompt against the work that waits there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import xxhash

from routing_agent.core.chance import Chance
from routing_agent.core.load_policies import sampled
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica

UNKNOWN_PREFIX: Final = "no replica has its prefix: the least work ahead"


class ExpectedTtft:
    """The replica with the least expected time to the first token.

    Its cost in seconds: `(load_dial x prompt tokens ahead + hit_dial x uncached prompt tokens) /
    prefill rate`, over the replica's weight, which grows during its slow start.
    """

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the cheapest; near-ties by rendezvous of the session."""
        settings = pool.settings
        costs = [(_cost_s(request, r, now)[0], r) for r in sampled(usable, chance)]
        least = min(cost for cost, _ in costs)
        limit = least + max(settings.near_tie_s, least * settings.near_tie_ratio)
        near = [r for cost, r in costs if cost <= limit]
        if not request.blocks or len(near) == 1:
            best = min(near, key=lambda r: r.inflight_tokens / r.weight(now))
        else:
            best = max(near, key=lambda r: xxhash.xxh3_64_intdigest(r.id.encode(), request.session))
        if best.profile.matching(request.blocks):
            return Pick(best, "prefix", f"least expected time to first token ({least:.2f} s)")
        return Pick(best, "load", UNKNOWN_PREFIX)

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """What the expected time is made of."""
        return _cost_s(request, replica, now)[1]


class CacheAware:
    """The replica with the fewest tokens to compute and in flight, each with its dial.

    Its cost in tokens: `load_dial x tokens in flight + hit_dial x uncached prompt tokens`, over the
    replica's weight. There is no switch between "by cache" and "by load": both count in every
    choice.
    """

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the cheapest."""
        costs = [(self.terms(request, r, now=now)["score"], r) for r in sampled(usable, chance)]
        best = min(costs, key=lambda one: one[0])[1]
        if best.profile.matching(request.blocks):
            return Pick(best, "prefix", "most of the prompt cached for its load")
        return Pick(best, "load", UNKNOWN_PREFIX)

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Tokens in flight and tokens to compute, and their weighted sum."""
        settings = replica.settings
        uncached = request.uncached_tokens(replica.profile.matching(request.blocks))
        tokens = float(replica.inflight_tokens)
        weight = replica.weight(now)
        score = (settings.load_dial * tokens + settings.hit_dial * uncached) / weight
        return {
            "inflight_tokens": tokens,
            "uncached_tokens": uncached,
            "weight": weight,
            "score": score,
        }


def _cost_s(request: RouteRequest, replica: Replica, now: float) -> tuple[float, dict[str, float]]:
    settings = replica.settings
    ahead = replica.prefill.backlog_tokens(now)
    uncached = request.uncached_tokens(replica.profile.matching(request.blocks))
    rate = replica.prefill.tokens_per_s
    weight = replica.weight(now)
    cost = (settings.load_dial * ahead + settings.hit_dial * uncached) / rate / weight
    return cost, {
        "ahead_tokens": ahead,
        "uncached_tokens": uncached,
        "prefill_tokens_per_s": rate,
        "weight": weight,
        "score": cost,
    }
