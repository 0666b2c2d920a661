"""What all messages share: their base class, units, and the buckets of latencies."""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated, Final

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]

# Latency histograms are dense: each bound is 1.1 times the one before, so that a percentile read at
# a bucket's geometric middle is within 5 % of the true one (sqrt(1.1) = 1.0488).
LATENCY_BUCKET_GROWTH: Final = 1.1
LATENCY_BOUNDS_S: Final = tuple(0.001 * LATENCY_BUCKET_GROWTH**i for i in range(141))  # to 623 s


def latency_bucket(seconds: float) -> int:
    """Give the index of the first bound that is not below `seconds`; one past the last = +Inf."""
    return bisect_left(LATENCY_BOUNDS_S, seconds)


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all messages are: immutable, keyword-only, unknown fields ignored."""
