"""Copies of requests to a shadow: another pool answers too, nobody gets its answer.

A copy begins once the primary's request is on its way to its engine. It has a connection of its
own, charges no replica, moves no breaker, bills nobody, and holds a place of a few. It is dropped
first: while anything waits in a queue, while this loop is late, when its client leaves. The two
answers are compared when both are over.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from routing_agent import wire
from routing_agent.core.attention import LATE_S, TICK_S
from routing_agent.core.fleet import PoolState
from routing_agent.core.replica import Replica
from routing_agent.core.sampling import is_copied
from routing_agent.proxy.shadow_copy import Copy

if TYPE_CHECKING:
    from routing_agent.metrics import FinishedRequest
    from routing_agent.proxy.exchange import Exchange
    from routing_agent.proxy.server import Proxy

log = structlog.get_logger(__name__)

OPEN_PAIRS: Final = 64  # whose primary is still answering; each keeps two beginnings


class Shadows:
    """All copies of one proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.outcomes: Counter[str] = Counter()
        self.copies: set[Copy] = set()  # both sides of which are not over

    def bound(self, exchange: Exchange, pool: PoolState, body: bytes) -> None:
        """Copy a request that was just sent to its engine, if it is in the share."""
        attempt = exchange.attempt
        if attempt is None:
            return
        if exchange.copy is not None:  # its primary is tried again
            attempt.tee = exchange.copy.tee(exchange)
            return
        shadow = pool.pool.shadow
        if shadow is None or not _may_be_copied(exchange):
            return
        if not is_copied(exchange.request_id, shadow.ratio):
            return
        replica = self._place(pool, shadow)
        if replica is None:
            return
        target = self.proxy.fleet.pools[shadow.pool]
        copy = exchange.copy = Copy(self, exchange, shadow, replica, target, body)
        self.copies.add(copy)
        attempt.tee = copy.tee(exchange)
        self.proxy.loop.call_soon(copy.start)

    def _place(self, pool: PoolState, shadow: wire.Shadow) -> Replica | None:
        """Give the replica for one more copy; `None`, counted, if it is dropped."""
        target = self.proxy.fleet.pools.get(shadow.pool)
        running = [c for c in self.copies if not c.is_over and c.pool is target]
        if len(running) >= shadow.at_once or len(self.copies) >= OPEN_PAIRS:
            self.outcomes["dropped_limit"] += 1
            return None
        if self._is_loaded(pool.pool.name) or self._is_loaded(shadow.pool):
            self.outcomes["dropped_load"] += 1
            return None
        now = monotonic()
        free = [] if target is None else target.replicas
        free = [r for r in free if not r.exclusion(now) and r.has_room()]
        if not free:
            self.outcomes["dropped_no_replica"] += 1
            return None
        used = Counter(c.replica.id for c in running)
        return min(free, key=lambda r: (used[r.id], r.inflight_tokens))

    def _is_loaded(self, pool: str) -> bool:
        """Say whether requests wait, or this loop is too late for more than its own work."""
        if len(self.proxy.line(pool)):
            return True
        return monotonic() - self.proxy.now > TICK_S + LATE_S

    def make_room(self, pool: str) -> None:
        """Give up what runs on a pool in whose queue a real request has to wait."""
        for copy in [c for c in self.copies if not c.is_over and c.pool.pool.name == pool]:
            copy.give_up("evicted", "a request had to wait in this pool")

    def close(self) -> None:
        """Give everything up: this agent ends."""
        for copy in list(self.copies):
            copy.give_up("cancelled", "this agent ended")
        self.copies.clear()

    def ended(self, copy: Copy, outcome: str) -> None:
        """Count how a copy ended."""
        self.outcomes[outcome] += 1

    def paired(self, copy: Copy, primary: FinishedRequest) -> None:
        """Hand a pair to whoever keeps it; that must never cost the primary."""
        self.copies.discard(copy)
        on_pair = self.proxy.on_pair
        if on_pair is None:
            return
        try:
            on_pair(copy.pair(primary))
        except Exception:
            log.exception("shadow_pair_not_kept", request_id=primary.request_id)

    def forget(self, copy: Copy) -> None:
        """Drop a copy of which there will be no pair."""
        self.copies.discard(copy)


def _may_be_copied(exchange: Exchange) -> bool:
    """Say whether a copy of a request can be answered elsewhere, and compared."""
    return exchange.generates and exchange.request is not None and not exchange.request.adapter
