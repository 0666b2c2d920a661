"""Throughput against what is usual at this hour, at equal demand. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures

DEMAND_LEAST: Final = 0.1  # of the usual: less says nothing of what could be carried


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is usual at this hour: medians over days."""

    days: int
    output_tokens_per_s: float
    requests_per_s: float
    running: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """Five minutes of a pool, and what is usual."""

    now: Figures
    age_s: float  # since the end of the newest minute
    baseline: Baseline | None


def usual(days: Sequence[Figures]) -> Baseline:
    """Give what is usual, from the same hour of some days."""
    loads = [n for f in days if (n := rollups.running(f)) is not None]
    return Baseline(
        days=len(days),
        output_tokens_per_s=statistics.median(f.output_tokens / f.covered_s for f in days),
        requests_per_s=statistics.median(f.requests / f.covered_s for f in days),
        running=statistics.median(loads) if loads else None,
    )


def compared(told: Recent) -> tuple[float | None, str]:
    """Give the throughput as a share of what is usual at this demand, and the figures in words.

    Demand is what comes in, or what is under way where that is more of the usual: slow engines
    finish fewer requests but hold more. A demand above the usual counts as usual.
    """
    known, now = told.baseline, told.now
    if known is None or not known.output_tokens_per_s:
        return None, "no day of the past seven has figures of this hour to compare with"
    if not now.covered_s:
        return None, "nothing was reported in the last five minutes"
    demand = (now.requests / now.covered_s) / known.requests_per_s
    running = rollups.running(now)
    if running is not None and known.running:
        demand = max(demand, running / known.running)
    if demand < DEMAND_LEAST:
        return None, f"demand is {demand * 100:.0f} % of the usual: too little to compare"
    tokens = now.output_tokens / now.covered_s
    share = tokens / known.output_tokens_per_s / min(1.0, demand)
    return share, (
        f"{tokens:.0f} tokens a second; {known.output_tokens_per_s:.0f} are usual at this hour"
        f" (median of {known.days} days), at {demand * 100:.0f} % of the usual demand."
    )
