"""How much memory a model takes and how many replicas a load needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

BYTES_PER_VALUE: Final[Mapping[str, float]] = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "int4": 0.5,
}


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Give the KV cache one token takes: keys and values (hence 2) of every layer's KV heads."""
    return math.ceil(2 * layers * kv_heads * head_dim * BYTES_PER_VALUE[dtype])


def weight_bytes(*, parameters: int, dtype: str) -> int:
    """Give the memory of a model's weights, without activations and engine overhead."""
    return math.ceil(parameters * BYTES_PER_VALUE[dtype])


def replicas_needed(*, peak_rate: float, rate_per_replica: float, buffer_ratio: float) -> int:
    """Give the replicas that carry `peak_rate` with `buffer_ratio` to spare."""
    return math.ceil(peak_rate / rate_per_replica * (1 + buffer_ratio) - 1e-9)
