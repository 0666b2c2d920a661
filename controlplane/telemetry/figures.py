"""Series → Plotly figures as plain dicts. Pure, strict JSON, no markup from user-chosen names.

A style name travels in each trace's `meta`; charts.js gives it its colour from the page's tokens,
so that one figure serves light and dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from controlplane.domain import amounts
from controlplane.telemetry.snapshots import SeriesSet, Window

MARKS_AT_MOST = 60
BYTE_MARKS = 5  # on an axis of bytes, at most
NAME_LENGTH = 20
TOLD_AT_MOST = 3  # of what one mark stands for

# Style: (colour on light, dash, width). Shape tells what colour alone must not.
STYLES: Mapping[str, tuple[str, str, float]] = {
    "p50": ("#0072b2", "solid", 1.2),
    "p95": ("#b36b00", "solid", 2.2),
    "p99": ("#c0392b", "dash", 1.6),
    "max": ("#b36b00", "solid", 2.2),
    "hit rate": ("#1e7a50", "solid", 2.0),
    "preempted": ("#c0392b", "solid", 2.0),
    "mean": ("#0072b2", "solid", 1.4),
    "answered": ("#0072b2", "solid", 2.0),
    "requests": ("#0072b2", "solid", 2.0),
    "failed": ("#c0392b", "dash", 2.0),
    "errors": ("#c0392b", "dash", 2.0),
    "limited": ("#b36b00", "dot", 1.8),
    "client left": ("#8e4585", "dashdot", 1.4),
    "client error": ("#5f6b76", "dot", 1.4),
    "running": ("#0072b2", "solid", 2.0),
    "waiting": ("#c0392b", "dash", 2.0),
    "prompt": ("#0072b2", "solid", 1.6),
    "cached": ("#1e7a50", "dot", 1.8),
    "output": ("#b36b00", "solid", 2.0),
}
CYCLE = ("p50", "p95", "p99", "client left", "cached", "client error")
TITLES = {"s": "seconds", "ratio": "", "bytes": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened: a vertical line with text."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A horizontal line that says what is promised."""

    value: float
    label: str


def figure(
    data: SeriesSet,
    *,
    revision: str,
    targets: Sequence[Target] = (),
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Build a whole figure; the browser draws it as it stands.

    Args:
        revision: what is shown; while it stays the same the browser keeps the reader's zoom.
    """
    times = [iso(t) for t in data.window.times]
    traces = [_trace(n, i, times, data) for i, n in enumerate(data.series)]
    shown = grouped(marks, data.window)
    traces += [_marks_trace(shown, data)] if shown else []
    return {"data": traces, "layout": _layout(data, revision, targets, shown)}


def _trace(name: str, position: int, times: list[str], data: SeriesSet) -> dict[str, Any]:
    style = name if name in STYLES else CYCLE[position % len(CYCLE)]
    colour, dash, width = STYLES[style]
    values = [finite(v) for v in data.series[name]]
    dots = alone(values)
    return {
        "type": "scatter",
        "mode": "lines+markers" if any(dots) else "lines",
        "marker": {"size": [5 if dot else 0 for dot in dots], "color": colour} if any(dots) else {},
        "cliponaxis": not any(dots),  # the newest point lies on the edge
        "name": text(short(name)),
        "meta": {"style": style, "name": name},
        "x": times,
        "y": values,
        "connectgaps": False,
        "line": {"color": colour, "dash": dash, "width": width, "shape": "linear"},
        **_hover(values, data.unit, text(name)),
    }


def short(name: str) -> str:
    """Cut a name in its middle: a legend gives each line as much room as the longest needs."""
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 9]}…{name[-8:]}"


def alone(values: Sequence[float | None]) -> list[bool]:
    """Say of each point whether it stands between gaps: a line would not show it."""
    padded = [None, *values, None]
    return [
        value is not None and before is None and after is None
        for before, value, after in zip(padded, values, padded[2:], strict=False)
    ]


def grouped(marks: Sequence[Mark], window: Window) -> list[Mark]:
    """Put what happened at about the same moment into one mark, so that lines stay apart."""
    slot_s = max(window.step_s, window.step_s * window.steps // MARKS_AT_MOST)
    slots: dict[int, list[Mark]] = {}
    for mark in sorted(marks, key=lambda m: m.at):
        slots.setdefault(int(mark.at.timestamp()) // slot_s, []).append(mark)
    return [Mark(at=found[0].at, text=_together(found)) for found in slots.values()]


def _together(marks: Sequence[Mark]) -> str:
    told = [m.text for m in marks[:TOLD_AT_MOST]]
    more = len(marks) - len(told)
    return "; ".join(told + ([f"and {more} more"] if more else []))


def _marks_trace(marks: Sequence[Mark], data: SeriesSet) -> dict[str, Any]:
    """Give the marks a hover text; their lines are shapes."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "changes",
        "meta": {"style": "mark"},
        "x": [iso(m.at.timestamp()) for m in marks],
        "y": [0 for _ in marks],
        "text": [text(m.text) for m in marks],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "triangle-up", "size": 9, "color": "#5b3a86"},
        "cliponaxis": False,
    }


def _layout(
    data: SeriesSet, revision: str, targets: Sequence[Target], marks: Sequence[Mark]
) -> dict[str, Any]:
    window = data.window
    return {
        "uirevision": revision,
        "height": 220,
        "margin": {"l": 56, "r": 12, "t": 8, "b": 32},
        "hovermode": "x unified",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": {
            "type": "date",
            "range": [iso(window.start_s), iso(window.end_s)],
            **time_formats(window),
            "nticks": 6,
        },
        "yaxis": _value_axis(data),
        "shapes": [_target_line(t) for t in targets] + [_mark_line(m) for m in marks],
        "annotations": [_target_label(t) for t in targets],
    }


def time_formats(window: Window) -> dict[str, str]:
    """Give how times read: a window of days needs the day, one of minutes the seconds."""
    if window.step_s * window.steps > 86400:
        return {"hoverformat": "%d %b %H:%M UTC", "tickformat": "%d %b"}
    seconds = ":%S" if window.step_s < 60 else ""
    return {"hoverformat": f"%H:%M{seconds} UTC", "tickformat": "%H:%M"}


def _peak(data: SeriesSet) -> float:
    return max((v for values in data.series.values() for v in values if v is not None), default=0.0)


def _value_axis(data: SeriesSet) -> dict[str, Any]:
    axis: dict[str, Any] = {"rangemode": "tozero", "nticks": 5}
    if data.unit == "ratio":
        return axis | {"tickformat": ".0%", "range": [0, 1.02]}
    if data.unit == "s":
        return axis | {"tickformat": "~s", "ticksuffix": "s"}
    if data.unit.startswith(("requests", "a minute")):
        return axis | {"tickformat": "~g"}
    if data.unit == "bytes":
        return axis | binary_ticks(_peak(data))
    # Below one, SI prefixes would write half a token as 500m.
    return axis | {"tickformat": "~g" if _peak(data) < 2 else "~s"}


def binary_ticks(highest: float) -> dict[str, Any]:
    """Give an axis of bytes its marks at round numbers of KiB, MiB or GiB, as cells say it."""
    step = 1.0
    while highest / step > BYTE_MARKS:
        step *= 2
    values = [step * i for i in range(math.ceil(highest / step) + 1)]
    return {"tickvals": values, "ticktext": [amounts.size(v) for v in values]}


def _target_line(target: Target) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": target.value,
        "y1": target.value,
        "line": {"dash": "dot", "width": 1.2, "color": "#5f6b76"},
        "name": "target",
    }


def _target_label(target: Target) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 0,
        "y": target.value,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "text": text(target.label),
        "font": {"size": 11},
    }


def _mark_line(mark: Mark) -> dict[str, Any]:
    at = iso(mark.at.timestamp())
    return {
        "type": "line",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {"dash": "dot", "width": 1, "color": "#5b3a86"},
        "name": "mark",
    }


def text(name: str) -> str:
    """Make a name plain text to Plotly, which reads a few HTML tags in every label."""
    return html.escape(name, quote=False)


def finite(value: float | None) -> float | None:
    """Give a number that strict JSON knows, or None: a gap."""
    return value if value is not None and math.isfinite(value) else None


def iso(at_s: float) -> str:
    """Give a time as Plotly's date axis reads it, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _hover(values: Sequence[float | None], unit: str, name: str) -> dict[str, Any]:
    """Give the hover text, three significant digits: of bytes in binary units, as cells say it."""
    if unit == "bytes":
        told = ["" if v is None else amounts.size(v) for v in values]
        return {"text": told, "hovertemplate": f"%{{text}}<extra>{name}</extra>"}
    shown = {"ratio": "%{y:.1%}", "s": "%{y:.3~s}s"}.get(unit, "%{y:.3~g}")
    return {"hovertemplate": f"{shown}<extra>{name}</extra>"}


def encode(payload: Mapping[str, Any]) -> bytes:
    """Encode as strict JSON: NaN and infinities become null (R62)."""
    return msgspec.json.encode(payload)
