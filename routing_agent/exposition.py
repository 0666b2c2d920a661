"""Prometheus text exposition (format 0.0.4), written straight from counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from routing_agent.wire import LATENCY_BOUNDS_S

PREFIX: Final = "signalbox_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
_BOUND_TEXTS: Final = (*(f"{bound:.6g}" for bound in LATENCY_BOUNDS_S), "+Inf")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(msgspec.Struct):
    """One metric with its help and its sample lines."""

    name: str
    kind: str
    text: str
    lines: list[str]


def render(families: Iterable[Family]) -> str:
    """Give the text of all families that have samples."""
    blocks = []
    for family in families:
        if family.lines:
            head = (
                f"# HELP {PREFIX}{family.name} {family.text}",
                f"# TYPE {PREFIX}{family.name} {family.kind}",
            )
            blocks.append("\n".join((*head, *family.lines)))
    return "\n".join(blocks) + "\n"


def counter(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> Family:
    """Give a family of counters."""
    return Family(name, "counter", text, [_line(name, ls, v) for ls, v in samples])


def gauge(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> Family:
    """Give a family of gauges."""
    return Family(name, "gauge", text, [_line(name, ls, v) for ls, v in samples])


def summary(name: str, text: str, count: int, total: float) -> Family:
    """Give a summary without quantiles: how often, and how much in all."""
    lines = [_line(f"{name}_sum", {}, total), _line(f"{name}_count", {}, count)]
    return Family(name, "summary", text, lines)


def histogram(name: str, text: str, samples: Iterable[tuple[Labels, list[int], float]]) -> Family:
    """Give a family of histograms over the dense latency bounds."""
    lines: list[str] = []
    for labels, counts, total in samples:
        inner = _inner(labels)
        joint = f"{inner}," if inner else ""
        seen = 0
        for bound, count in zip(_BOUND_TEXTS, counts, strict=True):
            seen += count
            lines.append(f'{PREFIX}{name}_bucket{{{joint}le="{bound}"}} {seen}')
        lines.append(_line(f"{name}_sum", labels, total))
        lines.append(_line(f"{name}_count", labels, seen))
    return Family(name, "histogram", text, lines)


def _line(name: str, labels: Labels, value: float) -> str:
    inner = _inner(labels)
    return f"{PREFIX}{name}{{{inner}}} {value}" if inner else f"{PREFIX}{name} {value}"


def _inner(labels: Labels) -> str:
    return ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
