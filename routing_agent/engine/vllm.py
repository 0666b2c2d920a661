"""vLLM: V0 and V1 metric names, counters with and without `_total`.

Names and traps were read from captures of 0.5 to 0.32; `tests/agent/engine/` holds them.
"""

from __future__ import annotations

from typing import ClassVar

from routing_agent.engine.base import Driver, EngineLoad, start_of, usage, whole
from routing_agent.engine.prometheus import Families, Sample

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
SWAPPED = ("vllm:num_requests_swapped",)  # V0: started, then pushed out of the cache: they wait
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the newer name wins
PROMPT_TOKENS = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
OUTPUT_TOKENS = ("vllm:generation_tokens_total", "vllm:generation_tokens")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
# 0.8 counted `gpu_prefix_cache_hits` in blocks: another unit, so it is not read.
CACHED_TOKENS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"


class Vllm(Driver):
    """A vLLM server."""

    name: ClassVar[str] = "vllm"
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    version_path: ClassVar[str | None] = "/version"
    families: ClassVar[tuple[str, ...]] = (
        *RUNNING,
        *WAITING,
        *SWAPPED,
        *KV_USAGE,
        *PROMPT_TOKENS,
        *OUTPUT_TOKENS,
        *PREEMPTIONS,
        *CACHED_TOKENS,
        CACHE_CONFIG,
        SLEEP_STATE,
    )

    def load_of(self, found: Families) -> EngineLoad:
        """Map vLLM's names; several series of one name are engines behind one server."""
        return EngineLoad(
            running=whole(found.total(*RUNNING)),
            waiting=_waiting(found),
            kv_usage=usage(found.mean(*KV_USAGE)),
            kv_capacity_tokens=_capacity(found.samples(CACHE_CONFIG)),
            prompt_tokens_total=found.total(*PROMPT_TOKENS),
            cached_prompt_tokens_total=found.total(*CACHED_TOKENS),
            output_tokens_total=found.total(*OUTPUT_TOKENS),
            preemptions_total=whole(found.total(*PREEMPTIONS)),
            process_started_at=start_of(found),
            awake=_awake(found.samples(SLEEP_STATE)),
        )


def _waiting(found: Families) -> int | None:
    waiting = found.total(*WAITING)
    if waiting is None:
        return None
    return round(waiting + (found.total(*SWAPPED) or 0))


def _capacity(configs: list[Sample]) -> int | None:
    sizes = [_size_tokens(config.labels) for config in configs]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _size_tokens(labels: dict[str, str]) -> int | None:
    """Give the cache's size: as told, else blocks times their size; "None" is a value here."""
    told = labels.get("kv_cache_size_tokens", "")
    if told.isdecimal():
        return int(told)
    blocks, block_tokens = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if blocks.isdecimal() and block_tokens.isdecimal():
        return int(blocks) * int(block_tokens)
    return None


def _awake(states: list[Sample]) -> bool | None:
    awake = [s.value > 0 for s in states if s.labels.get("sleep_state") == "awake"]
    return all(awake) if awake else None
