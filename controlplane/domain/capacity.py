"""How much memory a model takes and how many replicas a load needs. Pure arithmetic."""

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
HOURS_PER_MONTH: Final = 8760 / 12  # 730: how clouds turn a price an hour into one a month
_ROUNDING: Final = 1e-9  # 300 / 100 x 1.1 comes out as 3.3000000000000003; a whole number stays one


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Give the KV cache one token takes: keys and values (hence 2) of every layer's KV heads."""
    return math.ceil(2 * layers * kv_heads * head_dim * BYTES_PER_VALUE[dtype])


def weight_bytes(*, parameters: int, dtype: str) -> int:
    """Give the memory of a model's weights, without activations and engine overhead."""
    return math.ceil(parameters * BYTES_PER_VALUE[dtype])


def held_kv_heads(*, kv_heads: int, gpus: int) -> int:
    """Give the KV heads that `gpus` in tensor parallel hold together.

    Heads are dealt out over the GPUs; with more GPUs than heads each GPU holds one, so some are
    held twice (vLLM, `ModelConfig.get_num_kv_heads`).
    """
    return max(kv_heads, gpus)


def is_divisible(*, kv_heads: int, gpus: int) -> bool:
    """Say whether KV heads can be dealt out evenly over GPUs, whole or copied."""
    return kv_heads % gpus == 0 or gpus % kv_heads == 0


def kv_cache_bytes(
    *, gpus: int, memory_bytes: float, memory_share: float, activation_bytes: float, weights: float
) -> float:
    """Give what a replica's GPUs have left for the KV cache; below zero, the model does not fit.

    The engine takes `memory_share` of each GPU's memory, puts its part of the weights there, keeps
    `activation_bytes` a GPU for computing, and makes the rest KV blocks (vLLM's memory profiling).
    """
    return gpus * (memory_bytes * memory_share - activation_bytes) - weights


def concurrency(*, kv_cache: float, kv_per_request: float) -> int:
    """Give how many requests of one length the KV cache holds at the same time."""
    return max(0, math.floor(kv_cache / kv_per_request + _ROUNDING))


def replicas_needed(*, peak: float, per_replica: float, buffer_ratio: float) -> int:
    """Give the replicas that carry `peak` requests/s with `buffer_ratio` of it to spare."""
    return math.ceil(peak / per_replica * (1 + buffer_ratio) - _ROUNDING)


def utilisation_at_peak(*, peak: float, per_replica: float, replicas: int) -> float | None:
    """Give the share of their productivity that replicas use at the peak; None without any."""
    return peak / (replicas * per_replica) if replicas else None


def usd_per_month(*, gpus: int, usd_per_hour: float) -> float:
    """Give what GPUs cost that run all month."""
    return gpus * usd_per_hour * HOURS_PER_MONTH
