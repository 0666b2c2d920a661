"""What a run comes to, and several runs of each router beside one another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bench.load import percentile_ms
from bench.talks.people import Heard
from routing_agent.engine.base import EngineLoad

Row = dict[str, Any]
# Column, its key in a row, how a figure is shown.
COLUMNS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("hits", "hit_rate", lambda x: f"{100 * x:.1f} %"),
    ("TTFT mean ms", "ttft_mean_ms", lambda x: f"{x:.0f}"),
    ("P50", "ttft_p50_ms", lambda x: f"{x:.0f}"),
    ("P99", "ttft_p99_ms", lambda x: f"{x:.0f}"),
    ("work max/mean", "work_max_mean", lambda x: f"{x:.2f}"),
    ("in flight max/mean", "inflight_max_mean", lambda x: f"{x:.2f}"),
    ("CPU ms/request", "cpu_ms_per_request", lambda x: f"{x:.3f}"),
    ("at rest ms/s", "cpu_ms_per_second_at_rest", lambda x: f"{x:.1f}"),
    ("MiB", "memory_mib", lambda x: f"{x:.0f}"),
)


def seen(heard: Heard) -> Row:
    """Give what the people saw."""
    ttfts = heard.ttfts_s
    return {
        "requests": heard.requests,
        "problems": dict(heard.problems),
        "ttft_mean_ms": 1000 * statistics.fmean(ttfts) if ttfts else None,
        "ttft_p50_ms": percentile_ms(ttfts, 0.5),
        "ttft_p99_ms": percentile_ms(ttfts, 0.99),
    }


def computed(before: Sequence[EngineLoad], after: Sequence[EngineLoad]) -> Row:
    """Give hits and work by the engines' own counters."""
    asked = _grown(before, after, "prompt_tokens_total")
    cached = _grown(before, after, "cached_prompt_tokens_total")
    work = [all_ - hit for all_, hit in zip(asked, cached, strict=True)]
    return {
        "prompt_tokens": sum(asked),
        "hit_rate": sum(cached) / sum(asked) if sum(asked) else None,
        "work_max_mean": max(work) * len(work) / sum(work) if sum(work) else None,
    }


def max_mean_over_time(samples: Sequence[Sequence[float]]) -> float | None:
    """Give the busiest engine's requests over the mean of all, over the whole time."""
    total = sum(map(sum, samples))
    return sum(max(one) * len(one) for one in samples) / total if total else None


def table(rows: Iterable[Row]) -> str:
    """Show each router's medians over its runs and between what they lie, best mean TTFT first."""
    by_router: dict[str, list[Row]] = {}
    for row in rows:
        by_router.setdefault(row["router"], []).append(row)
    ordered = sorted(by_router.items(), key=lambda one: _median(one[1], "ttft_mean_ms") or 0.0)
    head = ["router", "runs", *(title for title, _, _ in COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in ordered:
        cells = [_cell(runs, key, show) for _, key, show in COLUMNS]
        lines.append("| " + " | ".join([name, str(len(runs)), *cells]) + " |")
    return "\n".join(lines)


def troubles(rows: Iterable[Row]) -> list[str]:
    """Name what went wrong, as sentences."""
    return [
        f"{row['router']}: {what}: {count} x"
        for row in rows
        for what, count in row["problems"].items()
    ]


def _grown(before: Sequence[EngineLoad], after: Sequence[EngineLoad], name: str) -> list[float]:
    return [
        (getattr(last, name) or 0.0) - (getattr(first, name) or 0.0)
        for first, last in zip(before, after, strict=True)
    ]


def _values(runs: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in runs if row.get(key) is not None]


def _median(runs: Sequence[Row], key: str) -> float | None:
    values = _values(runs, key)
    return statistics.median(values) if values else None


def _cell(runs: Sequence[Row], key: str, show: Callable[[float], str]) -> str:
    values = _values(runs, key)
    if not values:
        return "no figure"
    low, high = show(min(values)), show(max(values))
    spread = "" if low == high else f" ({low} to {high})"
    return show(statistics.median(values)) + spread
