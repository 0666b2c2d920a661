"""Policies that weigh what a replica has cached of a prompt against the work that waits there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core.chance import Chance
from routing_agent.core.load_policies import sampled
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica

UNKNOWN_PREFIX: Final = "no replica has its prefix: the least work ahead"


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
