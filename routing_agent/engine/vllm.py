"""vLLM: V0 and V1 metric names, counters with and without `_total`.

Names and traps were read from captures of 0.5 to 0.32; `tests/agent/engine/` holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from routing_agent.engine.base import (
    Driver,
    EngineFacts,
    EngineLoad,
    Metric,
    StatePage,
    count_in,
    json_object,
    text_in,
    usage,
    whole,
)
from routing_agent.engine.calls import AdapterCalls, SleepCalls, judge_by, post
from routing_agent.engine.prometheus import Families, Sample
from routing_agent.wire import EngineName

SWAPPED = "vllm:num_requests_swapped"  # V0: started, then pushed out of the cache: they wait
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP_STATE = "vllm:engine_sleep_state"
ADAPTERS = "vllm:lora_requests_info"  # the value is a time: the newest series is the current one
SERVER_INFO = "/server_info?config_format=json"

_DEV = "with VLLM_SERVER_DEV_MODE=1 (and --enable-sleep-mode on a GPU)"
_LORA = "with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
_judge_sleep: Final = judge_by(_DEV, {})


class Vllm(Driver):
    """A vLLM server."""

    name: ClassVar[EngineName] = "vllm"
    ready_paths: ClassVar[tuple[str, ...]] = ("/health",)
    # Both are there in development mode only, and say yes of a paused engine as of a sleeping one:
    # asleep is what its metrics call so, or what only the first page does not know.
    state_pages: ClassVar[tuple[StatePage, ...]] = (
        StatePage("/is_paused", "is_paused", "paused: POST /resume lets it go on"),
        StatePage("/is_sleeping", "is_sleeping", "asleep: POST /wake_up brings it back"),
    )
    fact_paths: ClassVar[tuple[str, ...]] = ("/version", SERVER_INFO)
    metrics_path: ClassVar[str | None] = "/metrics"
    lists_all_models: ClassVar[bool] = True
    refuses_unknown_models: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "running": Metric(("vllm:num_requests_running",)),
        "waiting": Metric(("vllm:num_requests_waiting",)),
        "swapped": Metric((SWAPPED,)),
        # Never `cpu_cache_usage_perc`, which is the swap space.
        "kv_usage": Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
        "kv_capacity_tokens": Metric((CACHE_CONFIG,)),
        "prompt_tokens_total": Metric(
            ("vllm:prompt_tokens_total", "vllm:prompt_tokens"), "counter"
        ),
        "output_tokens_total": Metric(
            ("vllm:generation_tokens_total", "vllm:generation_tokens"), "counter"
        ),
        "preemptions_total": Metric(
            ("vllm:num_preemptions_total", "vllm:num_preemptions"), "counter"
        ),
        # 0.8 counted `gpu_prefix_cache_hits` in blocks: another unit, so it is not read.
        "cached_prompt_tokens_total": Metric(
            ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"), "counter"
        ),
        "steps_total": Metric(("vllm:iteration_tokens_total_count",), "histogram"),
        "awake": Metric((SLEEP_STATE,)),
        "running_adapters": Metric((ADAPTERS,)),
    }
    untold: ClassVar[Mapping[str, str]] = {
        "max_running": f"vLLM tells it only at {SERVER_INFO} in development mode"
    }
    adapters: ClassVar[AdapterCalls | None] = AdapterCalls(
        load_path="/v1/load_lora_adapter",
        unload_path="/v1/unload_lora_adapter",
        option=_LORA,
        judge_load=judge_by(_LORA, {400: ("has already been loaded",)}),
        judge_unload=judge_by(_LORA, {404: ("cannot be found",)}),
    )
    sleep: ClassVar[SleepCalls | None] = SleepCalls(
        sleep=post("/sleep?level=1", None, _judge_sleep),
        wake=post("/wake_up", None, _judge_sleep),
        pause=post("/pause?mode=wait", None, _judge_sleep),
        resume=post("/resume", None, _judge_sleep),
    )

    def load_of(self, found: Families) -> EngineLoad:
        """Map vLLM's names; several series of one name are engines behind one server."""

        def total(field: str) -> float | None:
            return found.total(*self.metrics[field].names)

        return EngineLoad(
            running=whole(total("running")),
            waiting=_waiting(total("waiting"), total("swapped")),
            kv_usage=usage(found.mean(*self.metrics["kv_usage"].names)),
            kv_capacity_tokens=_capacity(found.samples(CACHE_CONFIG)),
            prompt_tokens_total=total("prompt_tokens_total"),
            cached_prompt_tokens_total=total("cached_prompt_tokens_total"),
            output_tokens_total=total("output_tokens_total"),
            preemptions_total=whole(total("preemptions_total")),
            steps_total=total("steps_total"),
            awake=_awake(found.samples(SLEEP_STATE)),
            running_adapters=_running_adapters(found.samples(ADAPTERS)),
        )

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read the version, and the batch size where development mode tells it."""
        found = json_object(body)
        if path != SERVER_INFO:
            return EngineFacts(version=text_in(found, "version"))
        return EngineFacts(max_running=_batch_size(found))


def _waiting(waiting: float | None, swapped: float | None) -> int | None:
    return None if waiting is None else round(waiting + (swapped or 0))


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


def _running_adapters(series: list[Sample]) -> tuple[str, ...] | None:
    """Give the adapters in the batch: old series stay, so the one with the newest time counts."""
    if not series:
        return None
    newest = max(series, key=lambda sample: sample.value)
    names = newest.labels.get("running_lora_adapters", "")
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _batch_size(info: dict[str, Any]) -> int | None:
    config = info.get("vllm_config")
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError:
            return None  # an old version, which prints its settings instead
    if not isinstance(config, dict):
        return None
    scheduler = config.get("scheduler_config")
    return count_in(scheduler, "max_num_seqs") if isinstance(scheduler, dict) else None
