"""Which requests' lives are kept: all that failed, those a caller traces, and a share of the rest;
and which requests are copied to a shadow.

The share goes by a hash of the request id, so that every agent, and every try with the same id,
comes to the same verdict.
"""

from __future__ import annotations

from typing import Final, Literal

import xxhash

from routing_agent.wire import SAMPLE_RATIO

Kept = Literal["failure", "sampled", "traced"]

FAILED_FROM: Final = 500  # 499 is the client's doing, 429 a limit's: both are sampled
_SEED: Final = 0x51B0
_SHADOW_SEED: Final = 0x5AD0  # another one: what is kept and what is copied are no one share
_ALL: Final = 2**64


def threshold(ratio: float) -> int:
    """Give what a hash must be below for a request to be in the share."""
    return round(min(max(ratio, 0.0), 1.0) * _ALL)


DEFAULT_THRESHOLD: Final = threshold(SAMPLE_RATIO)


def is_in_share(request_id: bytes, below: int) -> bool:
    """Say whether a request is in the share."""
    return xxhash.xxh3_64_intdigest(request_id, _SEED) < below


def is_copied(request_id: bytes, ratio: float) -> bool:
    """Say whether a request goes to a shadow that gets this share of them."""
    return xxhash.xxh3_64_intdigest(request_id, _SHADOW_SEED) < threshold(ratio)


def why_kept(status: int, *, traced: bool) -> Kept:
    """Say why a request that is kept is kept."""
    if status >= FAILED_FROM:
        return "failure"
    return "traced" if traced else "sampled"
