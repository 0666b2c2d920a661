"""Visits each replica again and again, every one at its own pace and never twice at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica

log = structlog.get_logger()

TICK_S = 0.1  # how soon a replica of a new table is visited
JITTER_RATIO = 0.1  # so that many agents do not call one engine in step


class Rounds:
    """One kind of visit to all replicas of the current table."""

    def __init__(
        self,
        fleet: Fleet,
        chance: Chance,
        *,
        visit: Callable[[Replica], Awaitable[None]],
        pause_s: Callable[[Replica], float],
    ) -> None:
        self._fleet = fleet
        self._chance = chance
        self._visit = visit
        self._pause_s = pause_s
        self._visited: dict[Replica, tuple[float, float]] = {}  # when, and the jitter after that
        self._under_way: set[Replica] = set()

    async def run(self) -> None:
        """Visit until cancelled."""
        async with asyncio.TaskGroup() as visits:
            while True:
                for replica in self._due(time.monotonic()):
                    self._under_way.add(replica)
                    visits.create_task(self._one_visit(replica))
                await asyncio.sleep(TICK_S)

    def _due(self, now: float) -> list[Replica]:
        current = set(self._fleet.replicas.values())
        for gone in self._visited.keys() - current:
            del self._visited[gone]
        return [r for r in current - self._under_way if self._is_due(r, now)]

    def _is_due(self, replica: Replica, now: float) -> bool:
        """Judge by the pause that fits the replica now: trouble found elsewhere shortens it."""
        visited = self._visited.get(replica)
        return visited is None or now - visited[0] >= self._pause_s(replica) * visited[1]

    async def _one_visit(self, replica: Replica) -> None:
        try:
            await self._visit(replica)
        except Exception:
            # A fault in watching one replica must not end the watching of all others.
            log.exception("visit_failed", replica=replica.id)
        finally:
            self._under_way.discard(replica)
            jitter = 1 + JITTER_RATIO * (2 * self._chance.random() - 1)
            self._visited[replica] = (time.monotonic(), jitter)
