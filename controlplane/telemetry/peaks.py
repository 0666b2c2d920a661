"""The busiest a subject has been, from its roll-ups: hours, and minutes since the last hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, QuerySet, Sum

from controlplane.domain import rollups
from controlplane.telemetry.models import RollUp, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A peak rate, when it was, and how much of the time looked at is known."""

    requests_per_s: float  # of the busiest five seconds
    at: datetime  # the beginning of the minute or hour it was in
    step_s: int
    covered_s: int  # seconds that somebody reported
    until: datetime  # the end of the newest roll-up


def peak(level: str, subject: str, *, since: datetime) -> Peak | None:
    """Give the highest rate since a time; None where there is no roll-up, which is not zero."""
    rows = RollUp.objects.filter(level=level, subject=subject, at__gte=since, covered_s__gt=0)
    hours = rows.filter(step_s=Step.HOUR)
    newest = hours.aggregate(newest=Max("at"))["newest"]
    minutes = rows.filter(step_s=Step.MINUTE)
    if newest is not None:  # that hour's minutes are in its row
        minutes = minutes.filter(at__gte=newest + timedelta(seconds=Step.HOUR))
    return _highest([*_read(hours), *_read(minutes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What came in one minute; a request's tokens are booked when it ends."""

    at: datetime
    requests: int
    prompt_tokens: int
    output_tokens: int


def busiest_minutes(
    level: str, subject: str, *, since: datetime, minutes: int, requests_at_most: int
) -> list[Minute]:
    """Give the stretch of so many minutes in which most requests came.

    Where those are more than `requests_at_most`, the stretch is shorter: the busiest of the longest
    that is not too much. Empty where there was no request, or one minute is too much already.
    """
    rows = RollUp.objects.filter(level=level, subject=subject, step_s=Step.MINUTE, at__gte=since)
    counted = rows.values("at").annotate(total=Sum("requests")).order_by("at")
    counts: dict[datetime, int] = dict(counted.values_list("at", "total"))
    for length in range(minutes, 0, -1):
        first, total = _busiest(counts, length)
        if first is not None and 0 < total <= requests_at_most:
            end = first + timedelta(minutes=length)
            return _minutes(rows.filter(at__gte=first, at__lt=end))
    return []


def _busiest(counts: dict[datetime, int], length: int) -> tuple[datetime | None, int]:
    """Give the beginning of the busiest stretch of so many minutes, and its requests."""
    steps = [timedelta(minutes=n) for n in range(length)]
    totals = {at: sum(counts.get(at + step, 0) for step in steps) for at in counts}
    first = max(totals, key=lambda at: totals[at], default=None)
    return first, totals[first] if first is not None else 0


def _minutes(rows: QuerySet[RollUp]) -> list[Minute]:
    found: dict[datetime, list[rollups.Figures]] = {}
    for at, figures in rows.values_list("at", "figures").order_by("at"):
        found.setdefault(at, []).append(rollups.unpacked(bytes(figures)))
    return [_minute(at, rollups.over_subjects(parts)) for at, parts in found.items()]


def _minute(at: datetime, figures: rollups.Figures) -> Minute:
    return Minute(
        at=at,
        requests=figures.requests,
        prompt_tokens=figures.prompt_tokens,
        output_tokens=figures.output_tokens,
    )


def _read(rows: QuerySet[RollUp]) -> list[Peak]:
    """Decode rows one at a time: those of 90 days have a histogram each."""
    found = rows.values_list("at", "step_s", "covered_s", "figures").iterator(chunk_size=500)
    return [
        Peak(
            requests_per_s=rollups.unpacked(bytes(figures)).peak_rate,
            at=at,
            step_s=step_s,
            covered_s=covered_s,
            until=at + timedelta(seconds=step_s),
        )
        for at, step_s, covered_s, figures in found
    ]


def _highest(rows: list[Peak]) -> Peak | None:
    if not rows:
        return None
    top = max(rows, key=lambda row: (row.requests_per_s, row.at))
    # Versions of a pool have rows of their own for the same time: that time counts once.
    covered: dict[datetime, int] = {}
    for row in rows:
        covered[row.at] = max(covered.get(row.at, 0), row.covered_s)
    return Peak(
        requests_per_s=top.requests_per_s,
        at=top.at,
        step_s=top.step_s,
        covered_s=sum(covered.values()),
        until=max(row.until for row in rows),
    )
