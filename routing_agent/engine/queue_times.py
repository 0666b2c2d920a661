"""Turns the queue-time histograms of engines, which only ever grow, into what is new of them.

An old peak stays in an engine's buckets for ever; only the difference of two scrapes of one process
says how long requests wait now. The first scrape of a process that was there before us is a base,
nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from routing_agent.core.fleet import Fleet
from routing_agent.engine.prometheus import Families, Reader
from routing_agent.metrics import Metrics
from routing_agent.wire import LATENCY_BOUNDS_S, Endpoint, latency_bucket

NAMES: Final = (
    "vllm:request_queue_time_seconds_bucket",
    "sglang:queue_time_seconds_bucket",
    "tgi_request_queue_duration_bucket",
)
_reader: Final = Reader(NAMES)
Cumulative = dict[float, float]  # bound in seconds -> samples up to it


class QueueTimes:
    """What each replica's engine said of its queue times at its last scrape."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._last: dict[tuple[str, str], Cumulative] = {}

    def note_page(self, endpoint: Endpoint, page: str) -> None:
        """Count what is new on an engine's metrics page."""
        found = cumulative(_reader.read(page))
        if not found:
            return
        key = (endpoint.replica, endpoint.url)
        if len(self._last) > 2 * len(self._fleet.replicas):
            current = {(r.id, r.endpoint.url) for r in self._fleet.replicas.values()}
            self._last = {k: v for k, v in self._last.items() if k in current}
        before, self._last[key] = self._last.get(key), found
        if before is not None:
            self._count(endpoint, fresh(before, found))

    def _count(self, endpoint: Endpoint, samples: Mapping[int, int]) -> None:
        replica = self._fleet.replicas.get(endpoint.replica)
        pool = self._fleet.pools.get(replica.pool) if replica is not None else None
        if pool is None or not samples:
            return
        counts = self._metrics.pools[(pool.pool.name, pool.pool.version)].engine_queue_wait.counts
        for bucket, n in samples.items():
            counts[bucket] += n


def cumulative(families: Families) -> Cumulative:
    """Read an engine's buckets, several series of it added up; what is no bound is passed over."""
    totals: Cumulative = {}
    for sample in families.first_of(NAMES):
        try:
            bound = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        if not math.isnan(bound) and sample.value >= 0:
            totals[bound] = totals.get(bound, 0.0) + sample.value
    return totals


def fresh(before: Cumulative, after: Cumulative) -> dict[int, int]:
    """Give the new samples by our own buckets; of another process all are new.

    A sample is read at the upper bound of the engine's bucket, so that a wait is never shown
    shorter than it was; in the first bucket, which begins at zero and is wide, at half of it. Above
    the highest bound it is read as that bound.
    """
    if any(after.get(bound, 0.0) < n for bound, n in before.items()):
        before = {}
    samples: dict[int, int] = {}
    below, at_s = 0.0, 0.0
    bounds = sorted(after)
    for bound in bounds:
        n = after[bound] - before.get(bound, 0.0)
        if math.isfinite(bound):
            at_s = bound / 2 if bound == bounds[0] and bound > LATENCY_BOUNDS_S[0] else bound
        new = round(n - below)
        if new > 0:
            bucket = latency_bucket(at_s) if at_s else len(LATENCY_BOUNDS_S)
            samples[bucket] = samples.get(bucket, 0) + new
        below = max(n, below)
    return samples
