"""How long an engine takes to be there: weights over a load path, then the engine's own start.

Rates are what published measurements come to, size over time. Wake-up is copying over PCIe: the
process, its compiled graphs and its memory pools are still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LoadPath = Literal["hub", "block-storage", "local-disk", "streamed", "streamed-fast"]


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast weights arrive, and who measured it."""

    bytes_per_s: float
    source: str


_LLAMA_8B: Final = 16.06e9  # bytes of Llama-3.1-8B in bf16
_STREAMER: Final = "NVIDIA blog on Run:ai Model Streamer, Sept 2025 (Llama-3-8B, A10G)"
_TENSORFUSE: Final = "tensorfuse.io, reducing GPU cold start, Sept 2025 (Llama-3.1-8B, L40S)"

LOAD_PATHS: Final[dict[LoadPath, Rate]] = {
    "hub": Rate(_LLAMA_8B / (61 + 33), f"{_TENSORFUSE}: download 61 s, then load 33 s"),
    "block-storage": Rate(_LLAMA_8B / 47.99, f"{_STREAMER}: safetensors from GP3, 48.0 s"),
    "local-disk": Rate(_LLAMA_8B / 18, f"{_TENSORFUSE}: from a cached volume, 18 s"),
    "streamed": Rate(_LLAMA_8B / 14.34, f"{_STREAMER}: 16 threads from GP3, 14.3 s"),
    "streamed-fast": Rate(_LLAMA_8B / 7.53, f"{_STREAMER}: 8 threads from IO2, 7.5 s"),
}

# Imports, compilation, graph capture and warm-up, by the same tensorfuse table.
ENGINE_START_S: Final = 10.0 + 13.0 + 7.0 + 34.0  # compiled code and kernels are cached
FIRST_ENGINE_START_S: Final = 10.0 + 42.0 + 54.0 + 94.0  # nothing is cached yet

# Host to GPU over PCIe 4.0 x16 from pinned memory: 25 of 31.5 GB/s. The vLLM blog on sleep mode
# (Oct 2025) tells of 0.1 to 0.4 s for small models.
WAKE_BYTES_PER_S: Final = 25e9


def cold_start_s(weights_bytes: int, path: LoadPath, *, is_first: bool = False) -> float:
    """Tell how long an engine takes from its start to its first request."""
    start_s = FIRST_ENGINE_START_S if is_first else ENGINE_START_S
    return weights_bytes / LOAD_PATHS[path].bytes_per_s + start_s


def wake_s(weights_bytes: int, level: Literal[1, 2], path: LoadPath = "local-disk") -> float:
    """Tell how long waking up takes: level 1 kept the weights in host memory, level 2 did not."""
    rate = WAKE_BYTES_PER_S if level == 1 else LOAD_PATHS[path].bytes_per_s
    return weights_bytes / rate
