"""llama.cpp's server: metrics without labels, adapters fixed at its start, any model name taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from routing_agent.engine.base import (
    Driver,
    EngineFacts,
    EngineLoad,
    Metric,
    count_in,
    json_object,
    text_in,
    usage,
    whole,
)
from routing_agent.engine.prometheus import Families
from routing_agent.wire import EngineName


class LlamaCpp(Driver):
    """A llama-server started with --metrics.

    With a key it guards everything but /health, the metrics too. It never refuses for overload:
    what exceeds its slots waits, and most of that is counted nowhere. An unknown model is served
    by the one it has.
    """

    name: ClassVar[EngineName] = "llamacpp"
    ready_paths: ClassVar[tuple[str, ...]] = ("/health",)  # 503 while the model is loading
    fact_paths: ClassVar[tuple[str, ...]] = ("/props",)
    metrics_path: ClassVar[str | None] = "/metrics"
    lists_all_models: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "running": Metric(("llamacpp:requests_processing",)),
        "waiting": Metric(("llamacpp:requests_deferred",)),
        "kv_usage": Metric(("llamacpp:kv_cache_usage_ratio",)),  # gone since 2025
        "kv_used_tokens": Metric(("llamacpp:kv_cache_tokens",)),
        "prompt_tokens_total": Metric(("llamacpp:prompt_tokens_total",), "counter"),
        "cached_prompt_tokens_total": Metric(("llamacpp:prompt_tokens_cached_total",), "counter"),
        "output_tokens_total": Metric(("llamacpp:tokens_predicted_total",), "counter"),
        # `tokens_predicted_total` moves only when a request ends, this with every step.
        "steps_total": Metric(("llamacpp:n_decode_total",), "counter"),
    }
    untold: ClassVar[Mapping[str, str]] = {
        "max_running": "llama.cpp tells its slots at /props",
        "preemptions_total": "llama.cpp does not preempt",
        "process_started_at": "llama.cpp tells no start time",
        "awake": "llama.cpp wakes up by itself",
        "running_adapters": "llama.cpp's adapters are part of its start",
    }

    def load_of(self, found: Families) -> EngineLoad:
        """Map llama.cpp's names. Its prompt tokens leave out the cached ones: they are added."""

        def total(field: str) -> float | None:
            return found.total(*self.metrics[field].names)

        kv_usage = usage(total("kv_usage"))
        cached = total("cached_prompt_tokens_total")
        computed = total("prompt_tokens_total")
        return EngineLoad(
            running=whole(total("running")),
            waiting=whole(total("waiting")),
            kv_usage=kv_usage,
            kv_capacity_tokens=_capacity(total("kv_used_tokens"), kv_usage),
            prompt_tokens_total=None if computed is None else computed + (cached or 0),
            cached_prompt_tokens_total=cached,
            output_tokens_total=total("output_tokens_total"),
            steps_total=total("steps_total"),
        )

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read slots, and cache size as slots times the context of one."""
        found = json_object(body)
        slots = count_in(found, "total_slots")
        settings = found.get("default_generation_settings")
        context = count_in(settings, "n_ctx") if isinstance(settings, dict) else None
        return EngineFacts(
            version=text_in(found, "build_info"),
            kv_capacity_tokens=None if slots is None or context is None else slots * context,
            max_running=slots,
        )


def _capacity(used_tokens: float | None, kv_usage: float | None) -> int | None:
    """Work the cache's size out of its fill, which old versions told in both units."""
    return round(used_tokens / kv_usage) if used_tokens and kv_usage else None
