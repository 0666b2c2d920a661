"""What a worker counts goes to the supervisor, ten times a second: counters live there alone.

So they are those of one agent, and never fall when a worker is started anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from routing_agent import wire
from routing_agent.metrics import FinishedRequest, Metrics

# What many requests have in common, and what each has for itself: see `written`.
Common = tuple[Any, ...]
Own = tuple[Any, ...]


def written(records: Iterable[FinishedRequest]) -> list[tuple[Common, list[Own]]]:
    """Give what finished requests are made of, to be sent; what is alike is sent once."""
    alike: dict[Common, list[Own]] = {}
    for one in records:
        common = (
            one.tenant, one.api_key, one.path, one.model, one.adapter, one.stream,
            one.pool, one.version, one.replica, one.route, one.reason, one.attempts,
            one.status, one.error, one.estimated, one.was_admitted,
        )  # fmt: skip
        own = (
            one.request_id, one.at, one.prompt_tokens, one.cached_prompt_tokens, one.output_tokens,
            one.queue_wait_s, one.connect_s, one.ttft_s, one.tpot_s, one.e2e_s,
        )  # fmt: skip
        found = alike.get(common)
        if found is None:
            found = alike[common] = []
        found.append(own)
    return list(alike.items())


def read(common: Common, own: Own) -> FinishedRequest:
    """Make a finished request of what it was made of."""
    (
        tenant, api_key, path, model, adapter, stream, pool, version, replica, route, reason,
        attempts, status, error, estimated, admitted,
    ) = common  # fmt: skip
    (
        request_id, at, prompt_tokens, cached_tokens, output_tokens, queue_wait_s, connect_s,
        ttft_s, tpot_s, e2e_s,
    ) = own  # fmt: skip
    one = FinishedRequest(request_id, tenant=tenant, status=status, at=at)
    one.api_key, one.path, one.model, one.adapter, one.stream = (
        api_key,
        path,
        model,
        adapter,
        stream,
    )
    one.pool, one.version, one.replica, one.route, one.reason = (
        pool,
        version,
        replica,
        route,
        reason,
    )
    one.attempts, one.error, one.estimated, one.was_admitted = attempts, error, estimated, admitted
    one.prompt_tokens, one.cached_prompt_tokens = prompt_tokens, cached_tokens
    one.output_tokens = output_tokens
    one.queue_wait_s, one.connect_s, one.ttft_s = queue_wait_s, connect_s, ttft_s
    one.tpot_s, one.e2e_s = tpot_s, e2e_s
    return one


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
