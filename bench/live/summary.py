"""What a live load comes to: errors by code, percentiles, token hit rate, rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from bench.live.client import OK
from bench.live.records import Record
from bench.live.sending import HELD_BACK
from routing_agent.simulation.results import percentile


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of a time, in seconds; `null` where nothing was measured."""

    count: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a load, as `--json` gives it."""

    trace: str
    run: str  # what its request ids begin with
    model: str
    planned: int
    sent: int
    answered_well: int
    errors: dict[str, int]  # by HTTP status and code
    duration_s: float  # from the first arrival planned to the last
    took_s: float  # until the last answer
    wanted_rate: float | None  # requests/s
    achieved_rate: float | None  # answered well, over the time until the last answer
    output_tokens_per_s: float | None
    late: Spread  # the client's own delay
    ttft: Spread
    tpot: Spread
    e2e: Spread
    wanted_prompt_tokens: int  # of requests answered well
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None  # 0 to 1, by tokens; null: no engine told cached tokens
    output_tokens: int
    left_out: dict[str, int]
    by_url: dict[str, int]
    by_replica: dict[str, int]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a load besides its records."""

    trace: str
    run: str
    model: str
    planned: int
    duration_s: float
    took_s: float
    left_out: dict[str, int]


def summarize(told: Told, records: Sequence[Record]) -> Summary:
    """Sum up the records of a load."""
    good = [r for r in records if r.outcome == OK]
    counted = [r for r in good if r.cached_tokens is not None]
    prompt = sum(r.prompt_tokens or 0 for r in counted)
    cached = sum(r.cached_tokens or 0 for r in counted)
    output = sum(r.output_tokens or 0 for r in good)
    return Summary(
        **msgspec.structs.asdict(told),
        sent=sum(r.outcome != HELD_BACK for r in records),
        answered_well=len(good),
        errors=dict(Counter(r.outcome for r in records if r.outcome != OK).most_common()),
        wanted_rate=_over(told.planned, told.duration_s),
        achieved_rate=_over(len(good), told.took_s),
        output_tokens_per_s=_over(output, told.took_s),
        late=spread(r.late_s for r in records),
        ttft=spread(r.ttft_s for r in good),
        tpot=spread(r.tpot_s for r in good),
        e2e=spread(r.e2e_s for r in good),
        wanted_prompt_tokens=sum(r.wanted_prompt_tokens for r in good),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in good),
        cached_tokens=cached,
        hit_rate=_over(cached, prompt),
        output_tokens=output,
        by_url=dict(sorted(Counter(r.url for r in good).items())),
        by_replica=dict(sorted(Counter(r.replica for r in good if r.replica).items())),
    )


def spread(values: Iterable[float | None]) -> Spread:
    """Give the percentiles of those values that are there."""
    known = sorted(value for value in values if value is not None)
    shares = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99}
    return Spread(
        count=len(known),
        mean_s=fmean(known) if known else None,
        max_s=known[-1] if known else None,
        **{name: percentile(known, share) for name, share in shares.items()},
    )


def _over(amount: float, of: float) -> float | None:
    return amount / of if of else None
