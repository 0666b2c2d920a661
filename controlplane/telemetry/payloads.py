"""A chart as the browser gets it: figure, words for who cannot see it, source, time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from controlplane.console import quantities
from controlplane.console.charts import absent
from controlplane.telemetry.figures import Mark, Target, figure
from controlplane.telemetry.series import fewer
from controlplane.telemetry.snapshots import NoData, SeriesSet

LATE_STEPS = 3  # a chart that ends with a longer gap says so

# The series whose newest value stands beside a chart's title.
HEADLINES = ("p95", "max", "hit rate", "answered", "requests", "output", "running", "preempted")


def payload(
    title: str,
    data: SeriesSet | NoData,
    *,
    revision: str,
    targets: Sequence[Target] = (),
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Give what charts.js draws: a figure, or the reason why there is none."""
    if isinstance(data, NoData):
        return absent(data.reason)
    data = fewer(data)
    return {
        "state": "live",
        "figure": figure(data, revision=revision, targets=targets, marks=marks),
        "now": headline(data),
        "summary": summary(title, data, targets),
        "source": source(data),
        "note": data.note,
        "days": data.window.step_s * data.window.steps > 86400,
        "unit": {"ratio": "0 to 1"}.get(data.unit, data.unit),
        "as_of": data.newest_s or data.window.end_s,
    }


def source(data: SeriesSet) -> str:
    """Say where a chart's figures come from, what a point covers and how old the newest is."""
    window = data.window
    said = f"from {data.source}, each point covers {quantities.span(window.span_s)}"
    newest_s = data.newest_s
    if newest_s is None or window.end_s - newest_s <= LATE_STEPS * window.step_s:
        return said
    return f"{said}; nothing newer than {datetime.fromtimestamp(newest_s, UTC):%H:%M:%S} UTC"


def headline(data: SeriesSet) -> str:
    """Give the newest value of the series that matters most."""
    for name in HEADLINES:
        if data.latest(name) is not None:
            return f"{name} {quantities.figure(data.latest(name), data.unit)}"
    return ""


def summary(title: str, data: SeriesSet, targets: Sequence[Target]) -> str:
    """Say the chart in one sentence."""
    parts = [
        f"{name} {quantities.figure(data.latest(name), data.unit)}"
        for name in data.series
        if data.latest(name) is not None
    ]
    aims = [t.label for t in targets]
    return f"{title}: " + ", ".join(parts + aims)
