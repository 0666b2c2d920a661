"""Steps of the recent store → series and summaries. Pure: sums, percentiles and gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from controlplane.domain import latency
from controlplane.telemetry.snapshots import (
    RECENT,
    GpuStep,
    PoolStep,
    ReplicaStep,
    SeriesSet,
    Window,
)

GPU_STEP_S = 5
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ALWAYS_SHOWN = ("answered", "failed")  # the others only where they occur
OUTCOMES = ("answered", "client error", "limited", "client left", "failed")

Steps = Sequence[PoolStep | None]


def outcome(status: str) -> str:
    """Sort an HTTP status into what an operator asks about."""
    if status == "429":
        return "limited"
    if status == "499":
        return "client left"
    if status.startswith("4"):
        return "client error"
    return "failed" if status.startswith("5") else "answered"


def spans(steps: Steps, window: Window) -> Iterable[list[PoolStep]]:
    """Give, for each point of the window, the reported steps of the span that ends there."""
    for begin, end in edges(len(steps), window):
        yield [s for s in steps[begin:end] if s is not None]


def edges(count: int, window: Window) -> Iterator[tuple[int, int]]:
    """Give the first step of each point's span and the one after its last."""
    stride, width = window.step_s // window.base_s, window.span_s // window.base_s
    lead = count - window.steps * stride
    for i in range(window.steps):
        end = lead + (i + 1) * stride
        yield max(0, end - width), end


def latency_series(steps: Steps, window: Window, histogram: str) -> SeriesSet:
    """Give P50, P95 and P99 in seconds, each from buckets summed over the point's span."""
    points = [
        latency.percentiles(buckets, tuple(QUANTILES.values()))
        for buckets in _sliding_sums(steps, window, histogram)
    ]
    columns = zip(*points, strict=True)
    series = {name: list(column) for name, column in zip(QUANTILES, columns, strict=True)}
    return SeriesSet(window=window, unit="s", series=series, source=RECENT)


def _sliding_sums(steps: Steps, window: Window, histogram: str) -> Iterator[dict[int, int]]:
    """Give the buckets summed over each point's span, adding what comes and taking what goes."""
    told = [s.histograms.get(histogram, {}) if s is not None else {} for s in steps]
    total: dict[int, int] = {}
    first = last = 0
    for begin, end in edges(len(steps), window):
        for change, sign in ((told[last:end], 1), (told[first:begin], -1)):
            for buckets in change:
                for bucket, n in buckets.items():
                    total[bucket] = total.get(bucket, 0) + sign * n
        first, last = begin, end
        total = {bucket: n for bucket, n in total.items() if n}
        yield total


def request_series(steps: Steps, window: Window) -> SeriesSet:
    """Give requests a second by outcome."""
    series: dict[str, list[float | None]] = {name: [] for name in OUTCOMES}
    for span in spans(steps, window):
        counts = dict.fromkeys(OUTCOMES, 0)
        for step in span:
            for status, n in step.requests.items():
                counts[outcome(status)] += n
        for name in OUTCOMES:
            series[name].append(per_second(counts[name], span, window))
    shown = {n: values for n, values in series.items() if n in ALWAYS_SHOWN or any(values)}
    return SeriesSet(window=window, unit="requests/s", series=shown, source=RECENT)


def token_series(steps: Steps, window: Window) -> SeriesSet:
    """Give tokens a second: prompt, of these from the prefix cache, and output."""
    read: dict[str, Callable[[PoolStep], int]] = {
        "prompt": lambda s: s.prompt_tokens,
        "cached": lambda s: s.cached_tokens,
        "output": lambda s: s.output_tokens,
    }
    series: dict[str, list[float | None]] = {name: [] for name in read}
    for span in spans(steps, window):
        for name, figure in read.items():
            series[name].append(per_second(sum(figure(s) for s in span), span, window))
    return SeriesSet(window=window, unit="tokens/s", series=series, source=RECENT)


def kv_series(steps: Steps, window: Window) -> SeriesSet:
    """Give KV cache usage over a pool's replicas as maximum and mean, never as a sum."""
    series: dict[str, list[float | None]] = {"max": [], "mean": []}
    for span in spans(steps, window):
        usages = _newest(span, lambda r: r.kv_usage)
        series["max"].append(max(usages) if usages else None)
        series["mean"].append(sum(usages) / len(usages) if usages else None)
    return SeriesSet(window=window, unit="ratio", series=series, source=RECENT)


def load_series(steps: Steps, window: Window) -> SeriesSet:
    """Give requests running and waiting in the engines of a pool."""
    series: dict[str, list[float | None]] = {"running": [], "waiting": []}
    for span in spans(steps, window):
        for name in series:
            numbers = _newest(span, attrgetter(name))
            series[name].append(sum(numbers) if numbers else None)
    return SeriesSet(window=window, unit="requests", series=series, source=RECENT)


def _newest(span: Sequence[PoolStep], read: Callable[[ReplicaStep], float | None]) -> list[float]:
    """Give each replica's newest known figure within a span."""
    found: dict[str, float] = {}
    for step in span:
        for name, replica in step.replicas.items():
            value = read(replica)
            if value is not None:
                found[name] = value
    return list(found.values())


def per_second(count: float, span: Sequence[object], window: Window) -> float | None:
    """Turn a count over the reported steps of a span into a rate; None when none was reported."""
    return count / (len(span) * window.base_s) if span else None


def of_replica(steps: Steps, replica: str) -> list[PoolStep | None]:
    """Narrow a pool's steps to one replica; a step in which nobody reported it is a gap."""
    return [
        PoolStep(replicas={replica: s.replicas[replica]}) if s and replica in s.replicas else None
        for s in steps
    ]


def replica_rates(steps: Steps, window: Window, replica: str) -> SeriesSet:
    """Give one replica's requests and errors a second."""
    return _replica_series(
        steps,
        window,
        replica,
        {"requests": lambda r: r.requests, "errors": lambda r: r.errors},
        unit="requests/s",
    )


def replica_tokens(steps: Steps, window: Window, replica: str) -> SeriesSet:
    """Give one replica's tokens a second."""
    return _replica_series(
        steps,
        window,
        replica,
        {
            "prompt": lambda r: r.prompt_tokens,
            "cached": lambda r: r.cached_tokens,
            "output": lambda r: r.output_tokens,
        },
        unit="tokens/s",
    )


def _replica_series(
    steps: Steps,
    window: Window,
    replica: str,
    read: Mapping[str, Callable[[ReplicaStep], int]],
    *,
    unit: str,
) -> SeriesSet:
    series: dict[str, list[float | None]] = {name: [] for name in read}
    for span in spans(of_replica(steps, replica), window):
        for name, figure in read.items():
            total = sum(figure(s.replicas[replica]) for s in span)
            series[name].append(per_second(total, span, window))
    return SeriesSet(window=window, unit=unit, series=series, source=RECENT)


def replica_kv(steps: Steps, window: Window, replica: str) -> SeriesSet:
    """Give one replica's KV cache usage."""
    both = kv_series(of_replica(steps, replica), window)
    return replace(both, series={"usage": both.series["max"]})


def gpu_spread(nodes: Sequence[SeriesSet], chosen: Sequence[Sequence[int]]) -> SeriesSet:
    """Give the maximum and mean over chosen GPUs of several nodes, point by point."""
    rows = [
        data.series[f"GPU {i}"]
        for data, indices in zip(nodes, chosen, strict=True)
        for i in indices
        if f"GPU {i}" in data.series
    ]
    points = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
    series: dict[str, list[float | None]] = {
        "max": [max(p, default=None) for p in points],
        "mean": [sum(p) / len(p) if p else None for p in points],
    }
    return replace(nodes[0], series=series)


def gpu_series(
    steps: Sequence[Mapping[int, GpuStep] | None], window: Window, figure: str
) -> SeriesSet:
    """Give one figure of each GPU of a node."""
    indices = sorted({i for step in steps if step for i in step})
    series: dict[str, list[float | None]] = {f"GPU {i}": [] for i in indices}
    stride = window.step_s // GPU_STEP_S
    for end in range(stride, len(steps) + 1, stride):
        for i in indices:
            known = [getattr(s[i], figure) for s in steps[end - stride : end] if s and i in s]
            values = [v for v in known if v is not None]
            series[f"GPU {i}"].append(values[-1] if values else None)
    units = {"utilization": "ratio", "memory_used_bytes": "bytes", "temperature_celsius": "°C"}
    return SeriesSet(window=window, unit=units[figure], series=series, source=RECENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """A pool's last minutes in one row; None where there is nothing to say."""

    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None
    queue_wait_p95_s: float | None = None
    requests_per_s: float | None = None
    failed_ratio: float | None = None
    hit_rate: float | None = None
    output_tokens_per_s: float | None = None
    samples: int = 0


def summary(minutes: Steps, *, covered_s: float) -> PoolSummary:
    """Sum a pool's minutes up; an idle pool has a rate of zero and no percentiles."""
    reported = [m for m in minutes if m is not None]
    if not reported:
        return PoolSummary()
    counts: dict[str, int] = {}
    for step in reported:
        for status, n in step.requests.items():
            counts[outcome(status)] = counts.get(outcome(status), 0) + n
    total = sum(counts.values())
    prompt = sum(s.prompt_tokens for s in reported)

    def p95(histogram: str) -> float | None:
        return latency.percentile(latency.merged(s.histograms[histogram] for s in reported), 0.95)

    return PoolSummary(
        ttft_p95_s=p95("ttft"),
        tpot_p95_s=p95("tpot"),
        queue_wait_p95_s=p95("queue_wait"),
        requests_per_s=total / covered_s,
        failed_ratio=counts.get("failed", 0) / total if total else None,
        hit_rate=sum(s.cached_tokens for s in reported) / prompt if prompt else None,
        output_tokens_per_s=sum(s.output_tokens for s in reported) / covered_s,
        samples=total,
    )
