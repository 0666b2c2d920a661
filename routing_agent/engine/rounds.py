"""Visits each replica again and again, every one at its own pace and never twice at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import islice

import structlog

from routing_agent.core.attention import next_tick_s
from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica

log = structlog.get_logger()

TICK_S = 0.1  # how soon a replica of a new table is visited
TICKS_A_LOOK = 10
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
        self._due_at: dict[Replica, float] = {}
        self._turn = 0
        self._under_way: set[Replica] = set()

    async def run(self) -> None:
        """Visit until cancelled."""
        async with asyncio.TaskGroup() as visits:
            while True:
                for replica in self._due(time.monotonic()):
                    self._under_way.add(replica)
                    visits.create_task(self._one_visit(replica))
                await asyncio.sleep(next_tick_s(time.monotonic(), TICK_S))

    def _due(self, now: float) -> list[Replica]:
        replicas = self._fleet.replicas
        if len(self._due_at) > len(replicas):
            current = set(replicas.values())
            self._due_at = {r: at for r, at in self._due_at.items() if r in current}
        self._hurry(now)
        due_at, under_way = self._due_at, self._under_way
        return [r for r in replicas.values() if due_at.get(r, now) <= now and r not in under_way]

    def _hurry(self, now: float) -> None:
        """Bring visits forward where trouble found elsewhere has shortened the pause.

        Each replica is looked at once in ten ticks: a thousand of them cost a tenth a tick.
        """
        self._turn = (self._turn + 1) % TICKS_A_LOOK
        for replica in islice(self._fleet.replicas.values(), self._turn, None, TICKS_A_LOOK):
            at = self._due_at.get(replica)
            if at is not None:
                self._due_at[replica] = min(at, now + self._pause_s(replica))

    async def _one_visit(self, replica: Replica) -> None:
        try:
            await self._visit(replica)
        except Exception:
            # A fault in watching one replica must not end the watching of all others.
            log.exception("visit_failed", replica=replica.id)
        finally:
            self._under_way.discard(replica)
            jitter = 1 + JITTER_RATIO * (2 * self._chance.random() - 1)
            self._due_at[replica] = time.monotonic() + self._pause_s(replica) * jitter
