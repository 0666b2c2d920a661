"""What a pool promises, what counts against it, and how much of the month's error budget is left.

A minute in which a share of the requests went wrong spends that share of a minute. So a total
outage spends its length, a night without traffic spends nothing, and figures of minutes add up to
hours and months. What went wrong: answers 5xx, and 429 of a pool that was full; a client's own
fault (other 4xx), a client that left (499) and a refusal by its own quota (which never reaches a
pool) are no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final

from controlplane.domain import latency
from controlplane.domain.amounts import percent
from controlplane.domain.rollups import Figures

WARN_SHARE: Final = 0.5  # over half the budget spent asks for action
FREEZE_SHARE: Final = 1.0
EARLY_AVAILABILITY_RATIO: Final = 0.9995  # tighter than the promise: an early word
QUANTILE: Final = 0.99  # of requests that have to meet the limits of time
OVERLOADED: Final = "429"
# Which promise comes first when they cannot all be kept; what keeps none of them (cost) is last.
ORDER: Final = ("availability", "ttft", "tpot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a pool promises over a calendar month (UTC)."""

    availability_ratio: float = 0.999  # of time, weighted by the share of requests that went well
    ttft_p99_s: float = 0.3
    tpot_p99_s: float = 0.0333  # 99 % of requests at 30 tokens a second or faster
    error_ratio: float = 0.005  # of requests answered 5xx, at most

    @property
    def allowed_ratio(self) -> float:
        """Give the share of time that may go wrong."""
        return 1 - self.availability_ratio


DEFAULTS: Final = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What happened over some time, as far as promises are concerned; times in seconds."""

    covered_s: float = 0.0  # somebody reported, and no maintenance window was open
    excluded_s: float = 0.0  # within a maintenance window
    bad_s: float = 0.0
    valid: int = 0  # requests that count
    bad: int = 0  # of them: 5xx, or refused by a full pool
    failed: int = 0  # of them: 5xx
    ttft: int = 0  # requests with a TTFT
    ttft_slow: int = 0  # of them: slower than promised
    tpot: int = 0
    tpot_slow: int = 0


def tally(figures: Figures, objectives: Objectives) -> Tally:
    """Give what a stretch of time counts for."""
    valid = sum(n for status, n in figures.statuses.items() if counts(status))
    failed = sum(n for status, n in figures.statuses.items() if status.startswith("5"))
    bad = failed + figures.statuses.get(OVERLOADED, 0)
    return Tally(
        covered_s=figures.covered_s,
        bad_s=figures.covered_s * bad / valid if valid else 0.0,
        valid=valid,
        bad=bad,
        failed=failed,
        ttft=latency.sample_count(figures.ttft),
        ttft_slow=slower(figures.ttft, objectives.ttft_p99_s),
        tpot=latency.sample_count(figures.tpot),
        tpot_slow=slower(figures.tpot, objectives.tpot_p99_s),
    )


def counts(status: str) -> bool:
    """Say whether a request with this answer counts at all: not if its client was at fault."""
    return status == OVERLOADED or not status.startswith("4")


def slower(histogram: Mapping[int, int], limit_s: float) -> int:
    """Count the samples above a limit; a bucket goes by its middle, as percentiles do."""
    return sum(n for b, n in histogram.items() if n > 0 and latency.bucket_middle_s(b) > limit_s)


def added(parts: Iterable[Tally]) -> Tally:
    """Add tallies up."""
    found = list(parts)
    return Tally(**{f.name: sum(getattr(t, f.name) for t in found) for f in fields(Tally)})


def month(at: datetime) -> tuple[datetime, datetime]:
    """Give the beginning and end of the calendar month (UTC) that a time lies in."""
    begin = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    is_december = begin.month == 12
    end = begin.replace(year=begin.year + is_december, month=1 if is_december else begin.month + 1)
    return begin, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a pool keeps one of its promises this month; None where nothing is known."""

    name: str  # availability, ttft, tpot, errors
    title: str
    promised: float
    achieved: float | None
    is_kept: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A pool's error budget of one month: minutes, and the share that is spent."""

    state: str  # ok, warning, exhausted, no-data
    total_minutes: float
    spent_minutes: float
    covered_s: float
    excluded_s: float
    reason: str

    @property
    def left_minutes(self) -> float:
        """Give the minutes left; below zero when more than all was spent."""
        return self.total_minutes - self.spent_minutes

    @property
    def spent_ratio(self) -> float:
        """Give the share that is spent; above 1 when more than all was."""
        return self.spent_minutes / self.total_minutes


def budget(objectives: Objectives, spent: Tally, *, now: datetime) -> Budget:
    """Judge the error budget of the month that `now` is in, by what was spent in it so far."""
    begin, end = month(now)
    total = objectives.allowed_ratio * (end - begin).total_seconds() / 60
    minutes = spent.bad_s / 60
    state, reason = _judged(total, minutes, spent.covered_s)
    return Budget(
        state=state,
        total_minutes=total,
        spent_minutes=minutes,
        covered_s=spent.covered_s,
        excluded_s=spent.excluded_s,
        reason=reason,
    )


def _judged(total: float, minutes: float, covered_s: float) -> tuple[str, str]:
    if not covered_s:
        return "no-data", "Nothing was reported this month: nothing is known to be spent."
    said = f"{minutes:.1f} of {total:.1f} minutes are spent ({percent(minutes / total)})"
    if minutes >= FREEZE_SHARE * total:
        return "exhausted", f"{said}: risky changes are frozen until the month ends."
    if minutes >= WARN_SHARE * total:
        return "warning", f"{said}: over half, so find out what spends it."
    return "ok", f"{said}, {total - minutes:.1f} are left."


def standings(objectives: Objectives, spent: Tally, *, now: datetime) -> tuple[Standing, ...]:
    """Say of each promise whether it is kept so far in the month of `now`."""
    share = 1 - QUANTILE
    return (
        _availability(objectives, spent, budget(objectives, spent, now=now)),
        _time("ttft", "TTFT P99", objectives.ttft_p99_s, (spent.ttft, spent.ttft_slow), share),
        _time("tpot", "TPOT P99", objectives.tpot_p99_s, (spent.tpot, spent.tpot_slow), share),
        _errors(objectives, spent),
    )


def _availability(objectives: Objectives, spent: Tally, month: Budget) -> Standing:
    """Judge availability by the month's budget: it is broken once that is spent, not before."""
    achieved = 1 - spent.bad_s / spent.covered_s if spent.covered_s else None
    promised = objectives.availability_ratio
    reason = "Nothing was reported this month."
    if achieved is not None:
        reason = (
            f"{_nines(achieved)} of the time so far; {_nines(promised)} of the month is promised."
        )
        if month.state != "exhausted" and achieved < EARLY_AVAILABILITY_RATIO:
            reason += f" Below {_nines(EARLY_AVAILABILITY_RATIO)}: an early warning."
    return Standing(
        name="availability",
        title="Availability",
        promised=promised,
        achieved=achieved,
        is_kept=None if achieved is None else month.state != "exhausted",
        reason=reason,
    )


def _nines(ratio: float) -> str:
    """Show an availability with as many digits as tell it from 100 %, rounded down."""
    return f"{math.floor(round(ratio * 1e5, 6)) / 1e3:g} %"


def _time(name: str, title: str, limit_s: float, seen: tuple[int, int], allowed: float) -> Standing:
    total, slow = seen
    ratio = slow / total if total else None
    reason = "No request of this month has this figure."
    if ratio is not None:
        reason = f"{percent(ratio)} of {total} requests were slower; {percent(allowed)} may be."
    return Standing(
        name=name,
        title=title,
        promised=limit_s,
        achieved=None if ratio is None else 1 - ratio,
        is_kept=None if ratio is None else ratio <= allowed,
        reason=reason,
    )


def _errors(objectives: Objectives, spent: Tally) -> Standing:
    ratio = spent.failed / spent.valid if spent.valid else None
    reason = "No request of this month counts."
    if ratio is not None:
        reason = f"{spent.failed} of {spent.valid} requests failed ({percent(ratio)})."
    return Standing(
        name="errors",
        title="Errors",
        promised=objectives.error_ratio,
        achieved=ratio,
        is_kept=None if ratio is None else ratio < objectives.error_ratio,
        reason=reason,
    )


def burn_rate(objectives: Objectives, *, bad_s: float, window_s: float) -> float:
    """Say how many times faster than allowed the budget is being spent.

    By the whole window, whatever part of it was reported: a bad half-minute after the first start
    has spent half a minute, not the half of an hour.
    """
    return bad_s / window_s / objectives.allowed_ratio


def freeze(budget: Budget) -> str | None:
    """Say why risky changes are frozen; None when they are not."""
    if budget.state != "exhausted":
        return None
    return f"The error budget of this month is exhausted: {budget.reason}"
