"""Reads of booked usage: sums of a stretch of hours by model or key, and the hours as series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet, Sum

from controlplane.telemetry.snapshots import HOUR_S, SeriesSet, Window
from controlplane.usage.models import UsageHour

SUMMED: Final = (
    "requests",
    "failed",
    "estimated",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
)
HOURS_OF: Final = {"1d": 24, "7d": 7 * 24, "30d": 30 * 24}
POINTS_AT_MOST: Final = 180
SOURCE: Final = "usage records"
CHARTS: Final = {
    "requests": ("Requests, hour by hour", "requests", ("requests", "failed")),
    "tokens": ("Tokens, hour by hour", "tokens", ("prompt", "cached", "output")),
}
_COLUMNS: Final = {
    "prompt": "prompt_tokens",
    "cached": "cached_prompt_tokens",
    "output": "output_tokens",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some hours up to the present one, which is not over."""

    since: datetime
    until: datetime

    @classmethod
    def of(cls, name: str, now: datetime) -> Stretch:
        """Give the stretch called `1d`, `7d` or `30d` (any other: a day) that ends with now."""
        until = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        return cls(until - timedelta(hours=HOURS_OF.get(name, 24)), until)

    @property
    def window(self) -> Window:
        """Give it as a chart's window: steps of an hour, or of as many as few points need."""
        hours = round((self.until - self.since).total_seconds() / HOUR_S)
        step_s = HOUR_S * -(-hours // POINTS_AT_MOST)
        steps = hours * HOUR_S // step_s
        return Window(
            end_s=round(self.until.timestamp()),
            step_s=step_s,
            steps=steps,
            span_s=step_s,
            base_s=HOUR_S,
        )


def booked(stretch: Stretch, *, tenants: Sequence[str] | None = None) -> QuerySet[UsageHour]:
    """Give the booked hours of a stretch; of all tenants, or of some."""
    found = UsageHour.objects.filter(hour__gte=stretch.since, hour__lt=stretch.until)
    return found if tenants is None else found.filter(tenant__in=tenants)


def totals(rows: QuerySet[UsageHour]) -> dict[str, int]:
    """Add hours up."""
    found = rows.aggregate(**{name: Sum(name) for name in SUMMED})
    return {name: found[name] or 0 for name in SUMMED}


def by(rows: QuerySet[UsageHour], *columns: str) -> list[dict[str, Any]]:
    """Add hours up by some columns, those with most tokens first."""
    sums = rows.order_by().values(*columns).annotate(**{f"{n}_sum": Sum(n) for n in SUMMED})
    lines = [
        {**{c: line[c] for c in columns}, **{n: line[f"{n}_sum"] or 0 for n in SUMMED}}
        for line in sums
    ]
    lines.sort(key=lambda line: tuple(str(line[c]) for c in columns))
    lines.sort(key=lambda line: -(line["prompt_tokens"] + line["output_tokens"]))
    return lines


def series(rows: QuerySet[UsageHour], chart: str, stretch: Stretch, born: datetime) -> SeriesSet:
    """Give one chart's series: an hour in which nothing was booked is zero, before `born` a gap."""
    window = stretch.window
    _, unit, names = CHARTS[chart]
    columns = [_COLUMNS.get(name, name) for name in names]
    points: list[list[float | None]] = [
        [None if end_s <= born.timestamp() else 0.0 for end_s in window.times] for _ in names
    ]
    sums = rows.order_by().values_list("hour").annotate(*(Sum(c) for c in columns))
    for hour, *added in sums:
        at = int(hour.timestamp() - window.start_s) // window.step_s
        if 0 <= at < window.steps:
            for values, amount in zip(points, added, strict=True):
                values[at] = (values[at] or 0.0) + amount
    per = "hour" if window.step_s == HOUR_S else f"{window.step_s // HOUR_S} hours"
    return SeriesSet(
        window=window,
        unit=f"{unit} / {per}" if unit == "requests" else unit,
        series=dict(zip(names, points, strict=True)),
        source=SOURCE,
        note="the last hour is not over",
    )
