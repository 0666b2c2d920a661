"""Percentiles from the dense latency histograms of `routing_agent.wire`, and merging of them.

A bucket's samples are read at its geometric middle: with bounds 1.1 apart that is within 5 % of any
of them. No samples means None, never zero; samples beyond the last bound count as that bound, which
is the least they can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from routing_agent.wire import LATENCY_BOUNDS_S, LATENCY_BUCKET_GROWTH

OVERFLOW = len(LATENCY_BOUNDS_S)  # the index of the +Inf bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """What a histogram says of a latency; all None when it holds no sample."""

    count: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


def merged(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add histograms up, over replicas, agents or time."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def sample_count(histogram: Mapping[int, int]) -> int:
    """Give the number of samples; a negative count in a bucket is taken for none."""
    return sum(n for n in histogram.values() if n > 0)


def percentile(histogram: Mapping[int, int], q: float) -> float | None:
    """Give the latency in seconds that the share `q` (0 to 1) of samples does not exceed."""
    return percentiles(histogram, (q,))[0]


def percentiles(histogram: Mapping[int, int], qs: Sequence[float]) -> list[float | None]:
    """Give several percentiles, for shares in growing order, in one pass over the buckets."""
    total = sample_count(histogram)
    ranks = [max(1, math.ceil(q * total - 1e-9)) for q in qs]
    found: list[float | None] = []
    seen = 0
    for bucket in sorted(histogram):
        seen += max(0, histogram[bucket])
        while len(found) < len(ranks) and seen >= ranks[len(found)]:
            found.append(bucket_middle_s(bucket))
    return found + [None] * (len(ranks) - len(found))


def bucket_middle_s(bucket: int) -> float:
    """Give the latency that stands for a bucket's samples."""
    if bucket <= 0:
        return LATENCY_BOUNDS_S[0]  # the first bucket reaches down to zero: it has no middle
    if bucket >= OVERFLOW:
        return LATENCY_BOUNDS_S[-1]
    return LATENCY_BOUNDS_S[bucket] / math.sqrt(LATENCY_BUCKET_GROWTH)


def stats(histogram: Mapping[int, int]) -> LatencyStats:
    """Give the three percentiles that pages and alerts read."""
    return LatencyStats(
        count=sample_count(histogram),
        p50_s=percentile(histogram, 0.50),
        p95_s=percentile(histogram, 0.95),
        p99_s=percentile(histogram, 0.99),
    )
