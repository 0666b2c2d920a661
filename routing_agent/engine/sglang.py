"""SGLang: its metric names, spelled with a colon or, through its gateway, with an underscore."""

from __future__ import annotations

from typing import ClassVar

from routing_agent.engine.base import Driver, EngineLoad, start_of, usage, whole
from routing_agent.engine.prometheus import Families, Sample


def _both_spellings(*names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in ("sglang:", "sglang_"))


RUNNING = _both_spellings("num_running_reqs", "num_requests_running")
WAITING = _both_spellings("num_queue_reqs", "num_requests_waiting")
KV_USAGE = _both_spellings("token_usage")
KV_CAPACITY = _both_spellings("max_total_num_tokens")
PROMPT_TOKENS = _both_spellings("prompt_tokens_total")
CACHED_TOKENS = _both_spellings("cached_tokens_total")
OUTPUT_TOKENS = _both_spellings("generation_tokens_total")


class Sglang(Driver):
    """An SGLang server started with --enable-metrics."""

    name: ClassVar[str] = "sglang"
    health_path: ClassVar[str] = "/health"  # generates a token: a second a call is ordinary
    metrics_path: ClassVar[str | None] = "/metrics"
    families: ClassVar[tuple[str, ...]] = (
        *RUNNING,
        *WAITING,
        *KV_USAGE,
        *KV_CAPACITY,
        *PROMPT_TOKENS,
        *CACHED_TOKENS,
        *OUTPUT_TOKENS,
    )

    def load_of(self, found: Families) -> EngineLoad:
        """Map SGLang's names. Tensor-parallel ranks repeat each other's gauges: rank 0 speaks."""
        gauges = Families(
            {
                name: rank_zero(found.samples(name))
                for name in (*RUNNING, *WAITING, *KV_USAGE, *KV_CAPACITY)
            }
        )
        return EngineLoad(
            running=whole(gauges.total(*RUNNING)),
            waiting=whole(gauges.total(*WAITING)),
            kv_usage=usage(gauges.mean(*KV_USAGE)),
            kv_capacity_tokens=whole(gauges.total(*KV_CAPACITY)),
            prompt_tokens_total=found.total(*PROMPT_TOKENS),
            cached_prompt_tokens_total=found.total(*CACHED_TOKENS),
            output_tokens_total=found.total(*OUTPUT_TOKENS),
            process_started_at=start_of(found),
        )


def rank_zero(samples: list[Sample]) -> list[Sample]:
    """Keep the samples of the first tensor- and pipeline-parallel rank."""
    return [
        s
        for s in samples
        if s.labels.get("tp_rank", "0") == "0" and s.labels.get("pp_rank", "0") == "0"
    ]
