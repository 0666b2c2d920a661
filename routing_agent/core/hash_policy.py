"""Consistent hash with bounded load: a session keeps its replica while that has room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core.chance import Chance
from routing_agent.core.load_policies import LEAST_TOKENS
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.core.ring import load_ceiling

# A session that has a replica leaves it above so many times the ceiling for new ones.
STICKY_BOUND: Final = 2.0


class ConsistentHash:
    """The session's own replica: where it was last, else its place on the ring, if there is room.

    The bound holds for sessions that are new here, in tokens in flight: they go to the first
    replica clockwise under it, so load is even however unequal the sessions. One that was here
    within its lifetime keeps its replica, and what that has cached of it, up to `STICKY_BOUND`
    times the bound: a single long prompt is more than a quarter of the mean load, and would send
    everybody else away.
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
        """Pick the replica the session had, or the first one clockwise under the load bound."""
        ceiling = load_ceiling(
            total_tokens=sum(r.inflight_tokens for r in usable),
            request_tokens=request.tokens,
            replicas=len(usable),
            bound=pool.settings.ring_bound,
        )
        allowed = {r.id for r in usable}
        had = pool.sessions.home(request.session, now - pool.settings.session_lifetime_s)
        home = pool.by_id(had) if had in allowed else None
        if home is not None and home.inflight_tokens + request.tokens <= ceiling * STICKY_BOUND:
            return Pick(home, "affinity", "the session's replica")
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
