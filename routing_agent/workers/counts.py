"""What a worker counts goes to the supervisor, ten times a second: counters live there alone.

So they are those of one agent, and never fall when a worker is started anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from routing_agent import wire
from routing_agent.metrics import FinishedRequest, Metrics

# The fields of a `FinishedRequest`, in the order in which they are sent.
FIELDS: Final = (
    "request_id", "tenant", "status", "at", "path", "api_key", "model", "adapter", "version",
    "pool", "replica", "route", "reason", "stream", "error", "attempts", "prompt_tokens",
    "cached_prompt_tokens", "output_tokens", "estimated", "was_admitted", "queue_wait_s",
    "connect_s", "ttft_s", "tpot_s", "e2e_s",
)  # fmt: skip
_values_of: Final = attrgetter(*FIELDS)


def written(record: FinishedRequest) -> tuple[Any, ...]:
    """Give the fields of a finished request, to be sent."""
    values: tuple[Any, ...] = _values_of(record)
    return values


def read(values: Sequence[Any]) -> FinishedRequest:
    """Make a finished request of its fields."""
    request_id, tenant, status, at = values[:4]
    record = FinishedRequest(request_id, tenant=tenant, status=status, at=at)
    for name, value in zip(FIELDS[4:], values[4:], strict=True):
        setattr(record, name, value)
    return record


class Counts:
    """What was counted beside finished requests."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self.requests = metrics.requests
        self.retries = metrics.retries
        self.shed = metrics.sheds
        self.spills = metrics.spills_total
        self.held = metrics.held_total
        self.paths = metrics.paths
        self.shadows = dict(metrics.shadows)
        self.decisions = metrics.decisions
        self.decision_sum_s = metrics.decision_sum_s


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
        self.retries: Counter[tuple[str, str]] = Counter()
        self.sheds: Counter[tuple[str, str, str]] = Counter()

    def settle(self) -> None:
        """Hand on what was counted since the last time."""
        finished, self._finished = self._finished, []
        if finished:
            self._on_finished(finished)
        is_idle = not (self.decisions or self.requests or self.sheds or self.retries)
        if is_idle and not self.paths and not self.shadows:
            return
        counts = Counts(self)
        self.requests, self.retries, self.sheds = Counter(), Counter(), Counter()
        self.spills_total, self.held_total = Counter(), Counter()
        self.paths, self.decisions, self.decision_sum_s = {}, 0, 0.0
        self.shadows.clear()
        self._on_counts(counts)

    def retried(self, pool: wire.Pool) -> None:
        """Count one retry."""
        self.retries[(pool.name, pool.version)] += 1

    def shed(self, pool: wire.Pool, policy: wire.OverloadPolicy) -> None:
        """Count a request that overload turned away, or to another pool."""
        self.sheds[(pool.name, pool.version, policy)] += 1
