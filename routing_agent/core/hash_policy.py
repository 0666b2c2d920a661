"""Consistent hash with bounded load: a session keeps its replica while that has room."""

from __future__ import annotations

from collections.abc import Sequence

from routing_agent.core.chance import Chance
from routing_agent.core.load_policies import LEAST_TOKENS
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.core.ring import load_ceiling


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
