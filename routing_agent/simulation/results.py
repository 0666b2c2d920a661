"""What a replay comes to: hits, balance, times to first token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from routing_agent.simulation.flights import Flight


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one policy, as `--json` gives it. Seconds; `null` where there is nothing."""

    policy: str
    hit_rate: float  # 0 to 1: prompt tokens that were cached
    balance: float | None  # uncached tokens of the busiest replica, over the mean
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    shed: int  # requests that no replica took


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay with answers tells besides."""

    tpot_p50_s: float | None
    tpot_p99_s: float | None
    preemptions: int


def summarize(policy: str, flights: Sequence[Flight], replicas: int) -> Result:
    """Summarize the flights of one policy."""
    flown = [flight for flight in flights if flight.engine is not None]
    ttfts = sorted(flight.ttft_s for flight in flown if flight.ttft_s is not None)
    prompt_tokens = sum(flight.request.prompt_tokens for flight in flown)
    cached_tokens = sum(flight.cached_tokens for flight in flown)
    work = work_of(flown, replicas)
    return Result(
        policy=policy,
        hit_rate=cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        balance=max(work) * replicas / sum(work) if sum(work) else None,
        ttft_mean_s=fmean(ttfts) if ttfts else None,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p90_s=percentile(ttfts, 0.9),
        ttft_p99_s=percentile(ttfts, 0.99),
        shed=len(flights) - len(flown),
    )


def answers_of(flights: Sequence[Flight]) -> Answers:
    """Tell how the answers went on after their first token."""
    tpots = sorted(flight.tpot_s for flight in flights if flight.tpot_s is not None)
    return Answers(
        tpot_p50_s=percentile(tpots, 0.5),
        tpot_p99_s=percentile(tpots, 0.99),
        preemptions=sum(flight.preemptions for flight in flights),
    )


def work_of(flights: Sequence[Flight], replicas: int) -> list[int]:
    """Give the prompt tokens that each replica computed."""
    work = [0] * replicas
    for flight in flights:
        if flight.engine is not None:
            work[flight.engine] += flight.uncached_tokens
    return work


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Give the smallest value that at least `share` of the values do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] if ordered else None


def hit_rate_over_time(flights: Sequence[Flight], parts: int) -> list[tuple[float, float | None]]:
    """Split the arrivals' time into parts; give each one's middle and its token hit rate."""
    end_s = max((flight.request.at_s for flight in flights), default=0.0) or 1.0
    prompt, cached = [0] * parts, [0] * parts
    for flight in flights:
        if flight.engine is not None:
            part = min(int(flight.request.at_s / end_s * parts), parts - 1)
            prompt[part] += flight.request.prompt_tokens
            cached[part] += flight.cached_tokens
    return [
        ((part + 0.5) * end_s / parts, cached[part] / prompt[part] if prompt[part] else None)
        for part in range(parts)
    ]
