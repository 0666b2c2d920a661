"""A chart as the browser gets it: figure, words for who cannot see it, source, time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.console import quantities
from controlplane.console.charts import absent
from controlplane.telemetry.figures import Mark, Target, figure
from controlplane.telemetry.snapshots import NoData, SeriesSet

# The series whose newest value stands beside a chart's title.
HEADLINES = ("p95", "max", "usage", "answered", "requests", "output", "running")


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
    return {
        "state": "live",
        "figure": figure(data, revision=revision, targets=targets, marks=marks),
        "now": headline(data),
        "summary": summary(title, data, targets),
        "source": f"from {data.source}, each point covers {quantities.seconds(data.window.span_s)}",
        "note": data.note,
        "unit": {"ratio": "0 to 1"}.get(data.unit, data.unit),
        "as_of": data.window.end_s,
    }


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
