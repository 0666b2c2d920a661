"""Triton with TensorRT-LLM, behind Triton's OpenAI frontend.

One gauge family holds many figures, told apart by a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from routing_agent.engine.base import (
    Driver,
    EngineFacts,
    EngineLoad,
    Metric,
    json_object,
    text_in,
    usage,
    whole,
)
from routing_agent.engine.prometheus import Families, Sample
from routing_agent.wire import EngineName

REQUESTS = "nv_trt_llm_request_metrics"
KV_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
ITERATIONS = "nv_trt_llm_general_metrics"


class Triton(Driver):
    """A Triton server with the TensorRT-LLM backend. Adapters are part of its model repository."""

    name: ClassVar[EngineName] = "triton"
    ready_paths: ClassVar[tuple[str, ...]] = ("/health/ready", "/v2/health/ready")
    fact_paths: ClassVar[tuple[str, ...]] = ("/v2",)
    metrics_path: ClassVar[str | None] = "/metrics"
    lists_all_models: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "running": Metric((REQUESTS,)),
        "waiting": Metric((REQUESTS,)),
        "max_running": Metric((REQUESTS,)),
        "kv_usage": Metric((KV_BLOCKS,)),
        "kv_capacity_tokens": Metric((KV_BLOCKS,)),
        "steps_total": Metric((ITERATIONS,)),
    }
    untold: ClassVar[Mapping[str, str]] = {
        "prompt_tokens_total": "Triton does not count tokens",
        "cached_prompt_tokens_total": "Triton does not count tokens",
        "output_tokens_total": "Triton does not count tokens",
        "preemptions_total": "Triton does not count preemptions",
        "process_started_at": "Triton tells no start time",
        "awake": "Triton cannot sleep",
        "running_adapters": "Triton does not tell which adapters run",
    }

    def load_of(self, found: Families) -> EngineLoad:
        """Map Triton's labels. Requests are in a step ("scheduled") or wait for one ("waiting")."""
        requests = _by_label(found.samples(REQUESTS), "request_type")
        blocks = _by_label(found.samples(KV_BLOCKS), "kv_cache_block_type")
        size, block_tokens = blocks.get("max"), blocks.get("tokens_per")
        return EngineLoad(
            running=whole(_sum(requests.get("scheduled") or requests.get("active"))),
            waiting=whole(_sum(requests.get("waiting"))),
            max_running=whole(_sum(requests.get("max"))),
            kv_usage=_kv_usage(blocks),
            kv_capacity_tokens=_tokens(size, block_tokens),
            steps_total=_sum(
                _by_label(found.samples(ITERATIONS), "general_type").get("iteration_counter")
            ),
        )

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read the version."""
        return EngineFacts(version=text_in(json_object(body), "version"))


def _by_label(samples: list[Sample], label: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in samples:
        if sample.value >= 0:
            found.setdefault(sample.labels.get(label, ""), []).append(sample.value)
    return found


def _sum(values: list[float] | None) -> float | None:
    return sum(values) if values else None


def _kv_usage(blocks: dict[str, list[float]]) -> float | None:
    """Give the fill as told ("fraction"), else used of all blocks, which old versions told only."""
    told = blocks.get("fraction")
    if told:
        return usage(sum(told) / len(told))
    used, size = _sum(blocks.get("used")), _sum(blocks.get("max"))
    return None if used is None or not size else usage(used / size)


def _tokens(size: list[float] | None, block_tokens: list[float] | None) -> int | None:
    if not size or not block_tokens:
        return None
    return round(sum(n * per for n, per in zip(size, block_tokens, strict=False)))
