"""The outcome of a live load as a table for people."""

from __future__ import annotations

from bench.live.summary import Spread, Summary

_HEADINGS = ("", "requests", "mean", "P50", "P90", "P95", "P99", "max")


def as_text(told: Summary) -> str:
    """Write the whole outcome."""
    return "\n".join([*_head(told), "", *_times(told), "", *_tokens(told), *_errors(told)])


def _head(told: Summary) -> list[str]:
    lines = [
        f"{told.trace} on {told.model}, run {told.run}",
        f"{told.planned:,} requests planned in {told.duration_s:,.1f} s, {told.sent:,} sent, "
        f"{told.answered_well:,} answered well in {told.took_s:,.1f} s",
        f"rate wanted {_rate(told.wanted_rate)}, achieved {_rate(told.achieved_rate)} "
        f"(answered well until the last answer), {_number(told.output_tokens_per_s)} output "
        "tokens/s",
    ]
    lines += [f"left out: {count:,} {reason}" for reason, count in told.left_out.items()]
    lines += [f"{count:,} by {where}" for where, count in told.by_url.items()]
    return lines


def _times(told: Summary) -> list[str]:
    rows = {
        "TTFT": told.ttft, "TPOT": told.tpot, "end to end": told.e2e, "client late by": told.late,
    }  # fmt: skip
    cells = [_HEADINGS, *(_row(title, spread) for title, spread in rows.items())]
    return ["".join(f"{cell:>12}" for cell in row) for row in cells]


def _row(title: str, spread: Spread) -> tuple[str, ...]:
    values = (spread.mean_s, spread.p50_s, spread.p90_s, spread.p95_s, spread.p99_s, spread.max_s)
    return (title, f"{spread.count:,}", *(_time(value) for value in values))


def _tokens(told: Summary) -> list[str]:
    hit = "not told by the engines" if told.hit_rate is None else f"{told.hit_rate:.1%}"
    return [
        f"prompt tokens {told.prompt_tokens:,} (the trace wants {told.wanted_prompt_tokens:,}), "
        f"output tokens {told.output_tokens:,}",
        f"token hit rate {hit} ({told.cached_tokens:,} cached, by the engines' usage)",
    ]


def _errors(told: Summary) -> list[str]:
    if not told.errors:
        return ["no errors"]
    return ["errors:", *(f"  {count:,} x {code}" for code, count in told.errors.items())]


def _rate(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}/s"


def _number(value: float | None) -> str:
    return "no" if value is None else f"{value:,.0f}"


def _time(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return f"{value_s * 1000:,.1f} ms" if value_s < 10 else f"{value_s:,.1f} s"
