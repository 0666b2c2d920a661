"""Figures over time → the series of charts, and summaries. Pure: sums, percentiles and gaps.

Every point is made from all figures of the time it covers: rates are counts over the seconds that
were reported, percentiles come from summed buckets, means and maxima are over that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain import latency, rollups
from controlplane.domain.amounts import counted
from controlplane.domain.rollups import Figures
from controlplane.telemetry.snapshots import RECENT, SeriesSet, Window

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ALWAYS_SHOWN = ("answered", "failed")  # the others only where they occur
OUTCOMES = ("answered", "client error", "limited", "client left", "failed")
SHOWN_AT_MOST = 6  # lines in one chart (UX)

Points = Sequence[Figures | None]  # None: nobody reported, which is not zero
Values = Mapping[str, float | None]


def outcome(status: str) -> str:
    """Sort an HTTP status into what an operator asks about."""
    if status == "429":
        return "limited"
    if status == "499":
        return "client left"
    if status.startswith("4"):
        return "client error"
    return "failed" if status.startswith("5") else "answered"


def edges(count: int, window: Window) -> Iterator[tuple[int, int]]:
    """Give the first stored step of each point's span and the one after its last."""
    stride, width = window.step_s // window.base_s, window.span_s // window.base_s
    lead = count - window.steps * stride
    for i in range(window.steps):
        end = lead + (i + 1) * stride
        yield max(0, end - width), end


def points(frames: Points, window: Window) -> list[Figures | None]:
    """Add stored steps up to the window's points; a point of which nothing was told is a gap."""
    spans = ([f for f in frames[b:e] if f is not None] for b, e in edges(len(frames), window))
    return [rollups.over_time(span) if span else None for span in spans]


def merged(subjects: Sequence[Points]) -> list[Figures | None]:
    """Add the points of several subjects up, moment by moment."""
    columns = ([f for f in column if f is not None] for column in zip(*subjects, strict=True))
    return [rollups.over_subjects(known) if known else None for known in columns]


def _quantiles(histogram: str) -> Callable[[Figures], Values]:
    def read(figures: Figures) -> Values:
        found = latency.percentiles(getattr(figures, histogram), tuple(QUANTILES.values()))
        return dict(zip(QUANTILES, found, strict=True))

    return read


def _outcomes(figures: Figures) -> Values:
    counts = dict.fromkeys(OUTCOMES, 0)
    for status, n in figures.statuses.items():
        counts[outcome(status)] += n
    return {name: rollups.rate(n, figures) for name, n in counts.items()}


def _failures(figures: Figures) -> Values:
    return {
        "requests": rollups.rate(figures.requests, figures),
        "errors": rollups.rate(figures.failed, figures),
    }


def _tokens(figures: Figures) -> Values:
    counts = {
        "prompt": figures.prompt_tokens,
        "cached": figures.cached_tokens,
        "output": figures.output_tokens,
    }
    return {name: rollups.rate(n, figures) for name, n in counts.items()}


def _tenant_tokens(figures: Figures) -> Values:
    return {name: v for name, v in _tokens(figures).items() if name != "cached"}  # not told


def _hit_rate(figures: Figures) -> Values:
    return {"hit rate": rollups.hit_rate(figures)}


def _kv(figures: Figures) -> Values:
    return {"max": figures.kv_max, "mean": rollups.kv_mean(figures)}


def _load(figures: Figures) -> Values:
    return {"running": rollups.running(figures), "waiting": rollups.waiting(figures)}


def _preemptions(figures: Figures) -> Values:
    known = figures.preemptions
    return {"preempted": None if known is None else rollups.rate(known * 60, figures)}


def _utilization(figures: Figures) -> Values:
    return {"max": figures.utilization_max, "mean": rollups.utilization_mean(figures)}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a chart's lines are read from figures."""

    unit: str
    read: Callable[[Figures], Values]
    optional: bool = False  # lines that never occur are left out


READINGS: Mapping[str, Reading] = {
    "ttft": Reading("s", _quantiles("ttft")),
    "tpot": Reading("s", _quantiles("tpot")),
    "e2e": Reading("s", _quantiles("e2e")),
    "queue-wait": Reading("s", _quantiles("queue_wait")),
    "requests": Reading("requests/s", _outcomes, optional=True),
    "failures": Reading("requests/s", _failures),
    "tokens": Reading("tokens/s", _tokens),
    "tenant-tokens": Reading("tokens/s", _tenant_tokens),
    "hit-rate": Reading("ratio", _hit_rate),
    "kv": Reading("ratio", _kv),
    "load": Reading("requests", _load),
    "preemptions": Reading("a minute", _preemptions),
    "gpu": Reading("ratio", _utilization),
}


def chart(name: str, found: Points, window: Window, source: str = RECENT) -> SeriesSet:
    """Give one chart's series (see `READINGS`) from a window's points."""
    reading = READINGS[name]
    columns = [reading.read(f) if f is not None else {} for f in found]
    names = dict.fromkeys(name for column in columns for name in column)
    lines: dict[str, list[float | None]] = {n: [c.get(n) for c in columns] for n in names}
    if reading.optional:
        lines = {n: v for n, v in lines.items() if n in ALWAYS_SHOWN or any(v)}
    return SeriesSet(window=window, unit=reading.unit, series=lines, source=source)


GPU_FIGURES: Mapping[str, tuple[str, Callable[[Figures], float | None]]] = {
    "utilization": ("ratio", rollups.utilization_mean),
    "memory_used_bytes": ("bytes", rollups.memory_mean),
    "temperature_celsius": ("°C", lambda f: f.temperature_max),
}


def gpu_lines(
    gpus: Mapping[int, Points], figure: str, window: Window, source: str = RECENT
) -> SeriesSet:
    """Give one figure of each GPU of a node."""
    unit, read = GPU_FIGURES[figure]
    lines = {
        f"GPU {i}": [read(f) if f is not None else None for f in gpus[i]] for i in sorted(gpus)
    }
    return fewer(SeriesSet(window=window, unit=unit, series=lines, source=source))


def fewer(data: SeriesSet, at_most: int = SHOWN_AT_MOST) -> SeriesSet:
    """Keep the highest lines, and the mean of the others as one; the note says so."""
    if len(data.series) <= at_most:
        return data
    ranked = sorted(data.series, key=lambda name: _mean(data.series[name]), reverse=True)
    shown, rest = ranked[: at_most - 1], ranked[at_most - 1 :]
    columns = zip(*(data.series[name] for name in rest), strict=True)
    others = [[v for v in column if v is not None] for column in columns]
    lines: dict[str, Sequence[float | None]] = {
        n: data.series[n] for n in data.series if n in shown
    }
    lines[f"mean of {counted(len(rest), 'others')}"] = [
        sum(c) / len(c) if c else None for c in others
    ]
    note = f"The {len(shown)} highest of {len(ranked)} have lines of their own."
    return replace(data, series=lines, note=f"{data.note} {note}".strip())


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else float("-inf")


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


def summary(minutes: Points) -> PoolSummary:
    """Sum a pool's minutes up; an idle pool has a rate of zero and no percentiles."""
    reported = [m for m in minutes if m is not None]
    if not reported:
        return PoolSummary()
    whole = rollups.over_time(reported)
    return PoolSummary(
        ttft_p95_s=latency.percentile(whole.ttft, 0.95),
        tpot_p95_s=latency.percentile(whole.tpot, 0.95),
        queue_wait_p95_s=latency.percentile(whole.queue_wait, 0.95),
        requests_per_s=rollups.rate(whole.requests, whole),
        failed_ratio=whole.failed / whole.requests if whole.requests else None,
        hit_rate=rollups.hit_rate(whole),
        output_tokens_per_s=rollups.rate(whole.output_tokens, whole),
        samples=whole.requests,
    )
