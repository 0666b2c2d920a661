"""Engines under a virtual clock: many schedulers, advanced from event to event."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.scheduler import Scheduler
from routing_agent.simulation.sequences import Event, Request

Listener = Callable[[int, Event], None]  # is told the engine's number and what happened


class VirtualEngines:
    """Engines of one kind that share a clock, which only goes forward."""

    def __init__(self, profile: Profile, count: int, listener: Listener) -> None:
        self.now = 0.0
        self.schedulers = [Scheduler(profile, every_token=False) for _ in range(count)]
        self.versions = [0] * count  # each grows with whatever happens in its engine
        self._listener = listener
        self._due: list[float | None] = [None] * count
        self._agenda: list[tuple[float, int]] = []  # entries that no longer hold are passed over

    def submit(self, engine: int, request: Request) -> None:
        """Give an engine a request now; raises `ValueError` if it can never fit."""
        self._expect(engine, self.schedulers[engine].submit(request, self.now))

    def advance(self, until: float) -> None:
        """Let time pass; `float("inf")` lets all work end."""
        while self._agenda and self._agenda[0][0] <= until:
            due, engine = heapq.heappop(self._agenda)
            if due == self._due[engine]:
                self.now = due
                self._step(engine, due)
        if until > self.now and until != float("inf"):
            self.now = until

    def _step(self, engine: int, due: float) -> None:
        self._due[engine] = None
        events, following = self.schedulers[engine].step(due)
        self._expect(engine, following)
        for event in events:
            self._listener(engine, event)

    def _expect(self, engine: int, due: float | None) -> None:
        if due is not None and due != self._due[engine]:
            heapq.heappush(self._agenda, (due, engine))
        self._due[engine] = due
        self.versions[engine] += 1
