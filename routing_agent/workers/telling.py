"""What a worker tells of replicas: what it did there since it last told, and what it believes."""

from __future__ import annotations

from collections.abc import Callable

from routing_agent.core.replica import Replica
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.messages import AdapterLost, AtReplica, AtReplicas, Message
from routing_agent.workers.replica import SharedReplica

# Requests, errors, ejections, expected tokens, the last token, adapters that run, words of events.
_Told = tuple[int, int, int, int, float | None, dict[str, int], str]


class Teller:
    """Remembers what was told."""

    def __init__(self, fleet: SharedFleet, send: Callable[[Message], None]) -> None:
        self._fleet = fleet
        self._send = send
        self._told: dict[Replica, _Told] = {}

    def tell(self, _now: float) -> None:
        """Tell what is new of every replica."""
        replicas = [*self._fleet.replicas.values(), *self._fleet.leaving]
        self._told = {r: self._told[r] for r in replicas if r in self._told}
        for replica in replicas:
            if isinstance(replica, SharedReplica) and replica.seen_adapters:
                self._tell_lost(replica)
        news = [one for replica in replicas if (one := self._news(replica)) is not None]
        if news:
            self._send(AtReplicas(news))

    def _tell_lost(self, replica: SharedReplica) -> None:
        """Tell which adapters are gone that were seen there, by what the engine answered."""
        lost = set(replica.seen_adapters) - set(replica.adapters.listed)
        replica.seen_adapters = replica.adapters.listed
        for name in sorted(lost):
            self._send(AdapterLost(replica.id, name))

    def _news(self, replica: Replica) -> AtReplica | None:
        now = (
            replica.requests_total,
            replica.errors_total,
            replica.ejections_total,
            replica.cache.expected_tokens_total,
            replica.last_token_at,
            dict(replica.adapters.running),
            replica.cache.events,
        )
        before = self._told.get(replica, (0, 0, 0, 0, None, {}, ""))
        if now == before:
            return None
        self._told[replica] = now
        return AtReplica(
            replica=replica.id,
            requests=now[0] - before[0],
            errors=now[1] - before[1],
            ejections=now[2] - before[2],
            expected_tokens=now[3] - before[3],
            last_token_at=now[4],
            tokens_per_s=replica.prefill.tokens_per_s,
            blocks=len(replica.profile),
            capacity_blocks=replica.profile.capacity_blocks,
            kv_events=now[6],
            adapters=now[5],
        )
