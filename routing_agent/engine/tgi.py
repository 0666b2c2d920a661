"""Text Generation Inference, and servers that took over its metric names."""

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
    whole,
)
from routing_agent.engine.prometheus import Families
from routing_agent.wire import EngineName


class Tgi(Driver):
    """A TGI server. Its adapters are fixed at its start; a request names one as its model."""

    name: ClassVar[EngineName] = "tgi"
    ready_paths: ClassVar[tuple[str, ...]] = ("/health",)  # 503 unless a shard can generate
    fact_paths: ClassVar[tuple[str, ...]] = ("/info",)
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "running": Metric(("tgi_batch_current_size",)),
        "waiting": Metric(("tgi_queue_size",)),
        # It counts tokens only as histograms of requests: their sums are the totals.
        "prompt_tokens_total": Metric(("tgi_request_input_length_sum",), "histogram"),
        "output_tokens_total": Metric(("tgi_request_generated_tokens_sum",), "histogram"),
        "steps_total": Metric(("tgi_batch_inference_count",), "counter"),
    }
    untold: ClassVar[Mapping[str, str]] = {
        "max_running": "TGI tells it at /info",
        "kv_usage": "TGI has no gauge of its cache",
        "kv_capacity_tokens": "TGI tells its token budget at /info, in some versions",
        "cached_prompt_tokens_total": "TGI does not count cached prompt tokens",
        "preemptions_total": "TGI does not preempt",
        "process_started_at": "TGI tells no start time",
        "awake": "TGI cannot sleep",
        "running_adapters": "TGI does not tell which adapters run",
    }

    def load_of(self, found: Families) -> EngineLoad:
        """Map TGI's names."""

        def total(field: str) -> float | None:
            return found.total(*self.metrics[field].names)

        return EngineLoad(
            running=whole(total("running")),
            waiting=whole(total("waiting")),
            prompt_tokens_total=total("prompt_tokens_total"),
            output_tokens_total=total("output_tokens_total"),
            steps_total=total("steps_total"),
        )

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read version and limits; `max_concurrent_requests` bounds requests, queue included."""
        found = json_object(body)
        return EngineFacts(
            version=text_in(found, "version"),
            kv_capacity_tokens=count_in(found, "max_batch_total_tokens"),
            max_running=count_in(found, "max_batch_size"),
        )
