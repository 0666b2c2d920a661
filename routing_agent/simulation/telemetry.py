"""What a simulated engine measures of itself, under vLLM's metric names."""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from routing_agent.gpu import SIMULATED_GPU_MEMORY_USED, SIMULATED_GPU_UTILIZATION
from routing_agent.simulation.exposition import (
    FIRST_TOKEN_S,
    PER_TOKEN_S,
    REQUEST_S,
    STEP_TOKENS,
    Histogram,
    counter,
    gauge,
    label_text,
    token_bounds,
)
from routing_agent.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from routing_agent.simulation.engine import Job

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
BUSY_OVER_S = 5.0  # the GPU's utilisation is its busy share over this long
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Telemetry:
    """Histograms and counters of one engine, rendered as its /metrics page."""

    def __init__(self, model: str, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._labels = label_text(engine="0", model_name=model)
        self._created = time.time()
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._looks: deque[tuple[float, float]] = deque()  # at the engine's time: busy so far
        self._build_histograms(token_bounds(scheduler.profile.context_tokens))

    def _build_histograms(self, tokens: tuple[float, ...]) -> None:
        def histogram(name: str, help_text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", f"Histogram of {help_text}.", bounds)

        self.first_token = histogram(
            "time_to_first_token_seconds", "time to first token in seconds", FIRST_TOKEN_S
        )
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "inter-token latency in seconds", PER_TOKEN_S
        )
        self.per_token = histogram(
            "request_time_per_output_token_seconds",
            "time_per_output_token_seconds per request",
            PER_TOKEN_S,
        )
        self.whole = histogram(
            "e2e_request_latency_seconds", "e2e request latency in seconds", REQUEST_S
        )
        self.queued = histogram(
            "request_queue_time_seconds", "time spent in WAITING phase for request", REQUEST_S
        )
        self.inference = histogram(
            "request_inference_time_seconds", "time spent in RUNNING phase for request", REQUEST_S
        )
        self.prefill = histogram(
            "request_prefill_time_seconds", "time spent in PREFILL phase for request", REQUEST_S
        )
        self.decode = histogram(
            "request_decode_time_seconds", "time spent in DECODE phase for request", REQUEST_S
        )
        self.prompt = histogram("request_prompt_tokens", "prefill tokens per request", tokens)
        self.generation = histogram(
            "request_generation_tokens", "generation tokens per request", tokens
        )
        self.asked = histogram(
            "request_params_max_tokens", "the max_tokens request parameter", tokens
        )
        self.step_tokens = histogram(
            "iteration_tokens_total", "number of tokens per engine_step", STEP_TOKENS
        )

    def note_token(self, job: Job, at: float) -> None:
        """Book one more token of a request."""
        if job.last_token_at is None:
            self.first_token.observe(at - job.arrived_at)
        else:
            self.between_tokens.observe(at - job.last_token_at)

    def note_finish(self, job: Job, at: float) -> None:
        """Book a request that ended well."""
        self._finished[job.finish_reason] += 1
        started = job.arrived_at if job.started_at is None else job.started_at
        first = at if job.first_token_at is None else job.first_token_at
        self.whole.observe(at - job.arrived_at)
        self.queued.observe(started - job.arrived_at)
        self.inference.observe(at - started)
        self.prefill.observe(first - started)
        self.prompt.observe(job.request.prompt_tokens)
        if job.request.output_tokens:
            self.decode.observe(at - first)
            self.generation.observe(job.generated)
            self.asked.observe(job.max_tokens)
            self.per_token.observe((at - first) / max(1, job.generated - 1))

    def page(self, *, asleep: bool, now: float) -> str:
        """Render the whole page, at the engine's time `now`."""
        lines = [*_process(), *self._gauges(asleep), *self._counters(), *self._info()]
        return "\n".join([*lines, *self._gpu(now)]) + "\n"

    def _gpu(self, now: float) -> Iterator[str]:
        """Tell of the GPU that this engine would have; the agent takes it for simulated."""
        scheduler, profile = self._scheduler, self._scheduler.profile
        kv_tokens = scheduler.pool.used * profile.block_tokens
        yield from gauge(
            SIMULATED_GPU_UTILIZATION,
            "Busy share of the simulated GPU over the last seconds.",
            [("", self._busy_share(now))],
        )
        yield from gauge(
            SIMULATED_GPU_MEMORY_USED,
            "Memory of the simulated GPU in use: weights and KV cache.",
            [("", profile.weights_bytes + kv_tokens * profile.kv_bytes_per_token)],
        )

    def _busy_share(self, now: float) -> float:
        busy_s = self._scheduler.busy_s(now)
        looks = self._looks
        while len(looks) > 1 and now - looks[1][0] >= BUSY_OVER_S:
            looks.popleft()
        looks.append((now, busy_s))
        at, before_s = looks[0]
        return min(1.0, max(0.0, (busy_s - before_s) / (now - at))) if now > at else 0.0

    def _gauges(self, asleep: bool) -> Iterator[str]:
        scheduler, labels = self._scheduler, self._labels
        waiting = 0 if asleep else scheduler.waiting  # asleep, vLLM shows nothing of its queue
        deferred = min(waiting, scheduler.deferred)
        yield from gauge(
            "vllm:num_requests_running",
            "Number of requests in model execution batches.",
            [(labels, scheduler.running)],
        )
        yield from gauge(
            "vllm:num_requests_waiting",
            "Number of requests waiting to be processed.",
            [(labels, waiting)],
        )
        yield from gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            [
                (f'{labels},reason="capacity"', waiting - deferred),
                (f'{labels},reason="deferred"', deferred),
            ],
        )
        yield from gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means it is awake.",
            [
                (f'{labels},sleep_state="awake"', not asleep),
                (f'{labels},sleep_state="weights_offloaded"', asleep),
                (f'{labels},sleep_state="discard_all"', 0),
            ],
        )
        yield from gauge(
            "vllm:kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            [(labels, scheduler.kv_usage)],
        )
        running = ",".join(scheduler.adapters.running)
        yield from gauge(  # vLLM 0.32 tells the running ones twice, and the time as the value
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            [
                (
                    label_text(
                        max_lora=str(scheduler.profile.adapter_slots),
                        running_lora_adapters=running,
                        waiting_lora_adapters=running,
                    ),
                    time.time(),
                )
            ],
        )

    def _counters(self) -> Iterator[str]:
        totals = self._scheduler.counters
        for name, help_text, value in (
            (
                "prefix_cache_queries",
                "Prefix cache queries, in tokens.",
                totals.prefix_cache_queries,
            ),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", totals.prefix_cache_hits),
            ("num_preemptions", "Cumulative number of preemptions.", totals.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", totals.prompt_tokens),
            ("prompt_tokens_cached", "Number of cached prompt tokens.", totals.prefix_cache_hits),
            ("generation_tokens", "Number of generation tokens.", totals.generation_tokens),
        ):
            yield from counter(f"vllm:{name}", help_text, [(self._labels, value)], self._created)
        yield from counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [(f'{self._labels},finished_reason="{r}"', n) for r, n in self._finished.items()],
            self._created,
        )
        for histogram in self._histograms():
            yield from histogram.lines(self._labels, self._created)

    def _histograms(self) -> Iterator[Histogram]:
        return (value for value in vars(self).values() if isinstance(value, Histogram))

    def _info(self) -> Iterator[str]:
        profile = self._scheduler.profile
        labels = label_text(
            block_size=str(profile.block_tokens),
            cache_dtype="auto",
            enable_prefix_caching=str(profile.prefix_cache),
            engine="0",
            kv_cache_size_tokens=str(profile.kv_capacity_tokens),
            num_gpu_blocks=str(profile.kv_blocks),
        )
        yield from gauge(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", [(labels, 1)]
        )


def _process() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield from gauge(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        [("", _STARTED_AT)],
    )
    yield "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds."
    yield "# TYPE process_cpu_seconds_total counter"
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.2f}"
    yield from gauge(
        "process_resident_memory_bytes", "Resident memory size in bytes.", [("", _resident_bytes())]
    )


def _resident_bytes() -> int:
    """Read the resident size; where there is no /proc, the largest size so far."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_STARTED_AT = time.time()
