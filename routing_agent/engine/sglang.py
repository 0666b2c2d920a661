"""SGLang: its metric names, spelled with a colon or, through its gateway, with an underscore.

Its gauges are written every 40 decode steps (`--decode-log-interval`), so they lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from routing_agent.engine.base import (
    Driver,
    EngineFacts,
    EngineLoad,
    Metric,
    MetricKind,
    count_in,
    json_object,
    text_in,
    usage,
    whole,
)
from routing_agent.engine.calls import SLOW_S, AdapterCalls, SleepCalls, judge_by, post
from routing_agent.engine.prometheus import Families, Sample
from routing_agent.wire import EngineName


def _both_spellings(*names: str, kind: MetricKind = "gauge") -> Metric:
    return Metric(tuple(p + name for name in names for p in ("sglang:", "sglang_")), kind)


_LORA = "with --enable-lora, and --max-lora-rank and --lora-target-modules wide enough"
_MEMORY = "with --enable-memory-saver"
_judge_pause: Final = judge_by("from version 0.5", {})
_judge_memory: Final = judge_by(_MEMORY, {})


class Sglang(Driver):
    """An SGLang server started with --enable-metrics."""

    name: ClassVar[EngineName] = "sglang"
    # /health generates a token (1.0 s on an idle engine, 20 s on a paused one): a probe limit of
    # less than 2 s would fail a good server there. /ready takes 2 ms and knows of pauses; old
    # versions lack it.
    ready_paths: ClassVar[tuple[str, ...]] = ("/ready", "/health")
    fact_paths: ClassVar[tuple[str, ...]] = ("/v1/loads", "/server_info", "/get_server_info")
    metrics_path: ClassVar[str | None] = "/metrics"
    lists_all_models: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "running": _both_spellings("num_running_reqs", "num_requests_running"),
        "waiting": _both_spellings("num_queue_reqs", "num_requests_waiting"),
        "kv_usage": _both_spellings("token_usage"),
        "kv_capacity_tokens": _both_spellings("max_total_num_tokens"),
        "prompt_tokens_total": _both_spellings("prompt_tokens_total", kind="counter"),
        "cached_prompt_tokens_total": _both_spellings("cached_tokens_total", kind="counter"),
        "output_tokens_total": _both_spellings("generation_tokens_total", kind="counter"),
        # Moves with the decode log; `generation_tokens_total` of plain answers only at their end.
        "steps_total": _both_spellings("realtime_tokens_total", kind="counter"),
    }
    untold: ClassVar[Mapping[str, str]] = {
        "max_running": "SGLang tells it at /v1/loads and /server_info",
        "preemptions_total": "SGLang does not count retracted requests",
        "process_started_at": "SGLang's metrics come from several processes and tell no start",
        "awake": "SGLang tells at /ready whether it is paused",
        "running_adapters": "SGLang tells how many adapter slots are used, not by which",
    }
    adapters: ClassVar[AdapterCalls | None] = AdapterCalls(
        load_path="/load_lora_adapter",
        unload_path="/unload_lora_adapter",
        option=_LORA,
        judge_load=judge_by(_LORA, {400: ("already loaded",)}),
        judge_unload=judge_by(_LORA, {400: ("does not exist",)}),
        unload_timeout_s=SLOW_S,  # it waits for the requests that use the adapter
        pins=True,
    )
    sleep: ClassVar[SleepCalls | None] = SleepCalls(
        sleep=post("/release_memory_occupation", {}, _judge_memory),
        wake=post("/resume_memory_occupation", {}, _judge_memory),
        pause=post("/pause_generation", {"mode": "abort"}, _judge_pause),
        resume=post("/continue_generation", {}, _judge_pause),
    )

    def load_of(self, found: Families) -> EngineLoad:
        """Map SGLang's names. Tensor-parallel ranks repeat each other's gauges: rank 0 speaks."""
        gauges = Families(
            {
                name: rank_zero(found.samples(name))
                for metric in self.metrics.values()
                if metric.kind == "gauge"
                for name in metric.names
            }
        )

        def gauge(field: str) -> float | None:
            return gauges.total(*self.metrics[field].names)

        def counter(field: str) -> float | None:
            return found.total(*self.metrics[field].names)

        return EngineLoad(
            running=whole(gauge("running")),
            waiting=whole(gauge("waiting")),
            kv_usage=usage(gauges.mean(*self.metrics["kv_usage"].names)),
            kv_capacity_tokens=whole(gauge("kv_capacity_tokens")),
            prompt_tokens_total=counter("prompt_tokens_total"),
            cached_prompt_tokens_total=counter("cached_prompt_tokens_total"),
            output_tokens_total=counter("output_tokens_total"),
            steps_total=counter("steps_total"),
        )

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read version, cache size and batch size; several ranks of a server add up."""
        found = json_object(body)
        if path == "/v1/loads":
            ranks = [rank for rank in found.get("loads") or [] if isinstance(rank, dict)]
            return EngineFacts(
                version=text_in(found, "version"),
                kv_capacity_tokens=_sum(ranks, "max_total_num_tokens"),
                max_running=_sum(ranks, "max_running_requests"),
            )
        return EngineFacts(
            version=text_in(found, "version"),
            kv_capacity_tokens=count_in(found, "max_total_num_tokens", "max_total_tokens"),
            max_running=count_in(found, "max_running_requests"),
        )


def rank_zero(samples: list[Sample]) -> list[Sample]:
    """Keep the samples of the first tensor- and pipeline-parallel rank."""
    return [
        s
        for s in samples
        if s.labels.get("tp_rank", "0") == "0" and s.labels.get("pp_rank", "0") == "0"
    ]


def _sum(ranks: list[dict[str, Any]], name: str) -> int | None:
    counts = [count for rank in ranks if (count := count_in(rank, name)) is not None]
    return sum(counts) if counts else None
