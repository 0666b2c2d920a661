"""What a worker counts goes to the supervisor, ten times a second: counters live there alone.

So they are those of one agent, and never fall when a worker is started anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from routing_agent import wire
from routing_agent.metrics import FinishedRequest, Metrics


class Counts(msgspec.Struct):
    """What was counted beside finished requests."""

    requests: Counter[tuple[str, str, str, str]]
    retries: Counter[tuple[str, str]]
    shed: Counter[tuple[str, str, str]]
    paths: dict[tuple[str, str, str], list[int]]
    shadows: Counter[str]
    decisions: int
    decision_sum_s: float


class WorkerMetrics(Metrics):
    """Collects, and hands on what it has when the proxy's clock ticks."""

    def __init__(
        self,
        on_finished: Callable[[list[FinishedRequest]], None],
        on_counts: Callable[[Counts], None],
    ) -> None:
        super().__init__()
        self._on_finished = on_finished
        self._on_counts = on_counts
        self._retries: Counter[tuple[str, str]] = Counter()
        self._shed: Counter[tuple[str, str, str]] = Counter()

    def settle(self) -> None:
        """Hand on what was counted since the last time."""
        finished, self._finished = self._finished, []
        if finished:
            self._on_finished(finished)
        counts = Counts(
            self.requests,
            self._retries,
            self._shed,
            self.paths,
            self.shadows.copy(),
            self.decisions,
            self.decision_sum_s,
        )
        is_idle = not (self.decisions or self.requests or self._shed or self._retries)
        if is_idle and not self.paths and not self.shadows:
            return
        self.requests, self._retries, self._shed = Counter(), Counter(), Counter()
        self.paths, self.decisions, self.decision_sum_s = {}, 0, 0.0
        self.shadows.clear()
        self._on_counts(counts)

    def retried(self, pool: wire.Pool) -> None:
        """Count one retry."""
        self._retries[(pool.name, pool.version)] += 1

    def shed(self, pool: wire.Pool, policy: wire.OverloadPolicy) -> None:
        """Count a request that overload turned away, or to another pool."""
        self._shed[(pool.name, pool.version, policy)] += 1
