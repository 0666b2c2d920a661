"""What few samples prove of a percentile or a share: bounds that hold with a stated doubt. Pure.

A percentile's bound is one of the samples: of n samples, the number above the true q-quantile is
binomial with 1 - q, whatever the latencies' distribution is. So the r-th largest sample lies above
that quantile unless chance put fewer than r samples there, and no assumption about tails is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from controlplane.domain.latency import OVERFLOW, sample_count
from routing_agent.wire import LATENCY_BOUNDS_S

# From here on the binomial is taken for a normal distribution: at q = 0.99 fifty samples or more
# lie above the quantile.
EXACT_UP_TO = 5000


def _below(n: int, p: float, r: int) -> float:
    """Give the probability of fewer than `r` successes of `n`, each with `p`."""
    term = (1 - p) ** n
    total = 0.0
    for k in range(r):
        total += term
        term *= (n - k) / (k + 1) * p / (1 - p)
    return total


def doubt(z: float) -> float:
    """Give the chance that a bound at `z` standard deviations is wrong, on one side."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def ranks(n: int, q: float, z: float) -> tuple[int, int]:
    """Give which largest samples bound the q-quantile from below and from above, counted from 1.

    The first may exceed `n`, the second may be 0: then the samples prove nothing on that side.
    """
    p, chance = 1 - q, doubt(z)
    if n > EXACT_UP_TO:
        spread = z * math.sqrt(n * p * q)
        return math.ceil(n * p + spread) + 1, max(0, math.floor(n * p - spread))
    lower = next((r for r in range(1, n + 1) if 1 - _below(n, p, r) <= chance), n + 1)
    upper = 0
    while upper < n and _below(n, p, upper + 1) <= chance:
        upper += 1
    return lower, upper


def largest(histogram: Mapping[int, int], rank: int) -> int | None:
    """Give the bucket of the `rank`-th largest sample, counted from 1; None where there is none."""
    seen = 0
    for bucket in sorted(histogram, reverse=True):
        seen += max(0, histogram[bucket])
        if seen >= rank > 0:
            return bucket
    return None


def at_least_s(histogram: Mapping[int, int], q: float, z: float) -> float | None:
    """Give what the q-quantile is at least, in seconds: the lower edge of the bounding bucket."""
    bucket = largest(histogram, ranks(sample_count(histogram), q, z)[0])
    if bucket is None:
        return None
    return LATENCY_BOUNDS_S[min(bucket, OVERFLOW) - 1] if bucket > 0 else 0.0


def at_most_s(histogram: Mapping[int, int], q: float, z: float) -> float | None:
    """Give what the q-quantile is at most, in seconds; of few samples the slowest stands for it.

    None: there are no samples, or the bound lies beyond the last bucket.
    """
    bucket = largest(histogram, max(1, ranks(sample_count(histogram), q, z)[1]))
    return None if bucket is None or bucket >= OVERFLOW else LATENCY_BOUNDS_S[bucket]


def share_bounds(hits: int, n: int, z: float) -> tuple[float, float]:
    """Give between which shares the true one lies, by Wilson's score interval (1927)."""
    if n <= 0:
        return 0.0, 1.0
    share, z2 = hits / n, z * z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)
