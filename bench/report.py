"""Figures as a table for people and as JSON for programs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

OURS = "signalbox"
REFERENCE = "nginx"


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: the median of each peer, and our ratio to the reference."""

    key: str
    title: str
    unit: str
    peers: dict[str, float]
    rounds: dict[str, list[float]]
    ratio: float | None  # of the medians; `None` without a reference
    ratio_low: float | None  # of the rounds
    ratio_high: float | None


@dataclass(frozen=True, slots=True)
class Section:
    """A benchmark's outcome; `problems` are wrong or missing answers, which spoil the figures."""

    rows: list[Row]
    problems: list[str]


def cost_row(key: str, title: str, unit: str, rounds: dict[str, list[float]]) -> Row:
    """Summarise measurements of each round."""
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    if REFERENCE not in medians or medians[REFERENCE] <= 0:
        return Row(key, title, unit, medians, rounds, None, None, None)
    pairs = zip(rounds[OURS], rounds[REFERENCE], strict=True)
    ratios = [ours / reference for ours, reference in pairs if reference > 0]
    ratio = medians[OURS] / medians[REFERENCE]
    return Row(key, title, unit, medians, rounds, ratio, min(ratios), max(ratios))


def as_json(sections: dict[str, Section]) -> dict[str, object]:
    """Give all figures by benchmark and key."""
    return {
        name: {
            **{row.key: asdict(row) for row in section.rows},
            "problems": section.problems,
        }
        for name, section in sections.items()
    }


def as_text(sections: dict[str, Section]) -> str:
    """Give a table of medians, with ratios and their range over the rounds."""
    lines = [f"{'':46}{OURS:>12}{REFERENCE:>12}   ratio (range)"]
    for name, section in sections.items():
        lines += ["", name]
        lines += [_line(row) for row in section.rows]
        lines += [f"  NOT CLEAN: {problem}" for problem in section.problems]
    if not any(REFERENCE in row.peers for s in sections.values() for row in s.rows):
        lines += ["", f"No ratios: {REFERENCE} is not on PATH. Install it to compare."]
    return "\n".join(lines)


def _line(row: Row) -> str:
    ours = _figure(row.peers.get(OURS), row.unit)
    reference = _figure(row.peers.get(REFERENCE), row.unit)
    line = f"  {row.title:44}{ours:>12}{reference:>12}"
    if row.ratio is None:
        return line
    return f"{line}   {row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g} {unit}"
