"""Figures as tables for people and as JSON for programs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers import COMPILED, OURS, REFERENCE

NAME_WIDTH = 28
CELL_WIDTH = 27

# One value a round; `None` where a peer was not measured in that round.
Rounds = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over rounds, and between what it lies."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quantity:
    """One measured quantity of every peer: a column of a table."""

    key: str
    title: str
    unit: str
    rounds: Rounds
    has_ratio: bool = True

    def value(self, peer: str) -> Spread | None:
        """Give a peer's own figure."""
        return _spread(self.rounds.get(peer, ()))

    def ratio(self, peer: str) -> Spread | None:
        """Give a peer's ratio to the reference, each round's to the same round's."""
        if not self.has_ratio or peer == REFERENCE:
            return None
        pairs = zip(self.rounds.get(peer, ()), self.rounds.get(REFERENCE, ()), strict=False)
        return _spread([ours / reference for ours, reference in pairs if ours and reference])


@dataclass(frozen=True, slots=True)
class Table:
    """Quantities that are read side by side."""

    title: str
    quantities: Sequence[Quantity]


@dataclass(frozen=True, slots=True)
class Section:
    """A benchmark's outcome.

    `problems` are wrong or missing answers, which spoil the figures; `absent` are peers that could
    not be measured, with the reason.
    """

    tables: Sequence[Table]
    problems: Sequence[str]
    absent: Mapping[str, str]


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def as_json(sections: Mapping[str, Section]) -> dict[str, object]:
    """Give all figures by benchmark and quantity."""
    return {name: _section_json(section) for name, section in sections.items()}


def _section_json(section: Section) -> dict[str, object]:
    figures: dict[str, object] = {
        quantity.key: _quantity_json(quantity)
        for table in section.tables
        for quantity in table.quantities
    }
    return {**figures, "problems": list(section.problems), "absent": dict(section.absent)}


def _quantity_json(quantity: Quantity) -> dict[str, object]:
    ratios = {peer: quantity.ratio(peer) for peer in quantity.rounds}
    medians = {peer: quantity.value(peer) for peer in quantity.rounds}
    return {
        "title": quantity.title,
        "unit": quantity.unit,
        "peers": {peer: spread.median for peer, spread in medians.items() if spread},
        "rounds": {peer: list(values) for peer, values in quantity.rounds.items()},
        "ratios": {
            peer: {"median": spread.median, "low": spread.low, "high": spread.high}
            for peer, spread in ratios.items()
            if spread
        },
    }


def as_text(sections: Mapping[str, Section]) -> str:
    """Give tables: a line for each peer, its median, and its ratio with lowest and highest."""
    lines: list[str] = []
    for name, section in sections.items():
        for table in section.tables:
            lines += _table_lines(name, table)
        lines += [f"  NOT CLEAN: {problem}" for problem in section.problems]
        lines += [f"  NOT MEASURED: {peer}: {why}" for peer, why in section.absent.items()]
        if REFERENCE in section.absent:
            lines.append(f"  No ratios: {REFERENCE} is what they refer to.")
        lines.append("")
    return "\n".join(lines)


def _table_lines(name: str, table: Table) -> list[str]:
    columns = [f"{q.title}, {q.unit}" for q in table.quantities]
    lines = [
        f"{name}: {table.title}",
        " " * NAME_WIDTH + "".join(f"{column:<{CELL_WIDTH}}" for column in columns).rstrip(),
    ]
    peers = list(dict.fromkeys(peer for q in table.quantities for peer in q.rounds))
    for peer in peers:
        cells = "".join(f"{_cell(q, peer):<{CELL_WIDTH}}" for q in table.quantities)
        mark = "> " if peer in (OURS, COMPILED) else "  "
        lines.append(f"{mark}{peer:<{NAME_WIDTH - 2}}{cells}".rstrip())
    return [*lines, ""]


def _cell(quantity: Quantity, peer: str) -> str:
    value = quantity.value(peer)
    if value is None:
        return "-"
    ratio = quantity.ratio(peer)
    if ratio is not None:
        low, high = _factor(ratio.low), _factor(ratio.high)
        return f"{_short(value.median)}  {_factor(ratio.median)}x ({low}-{high})"
    if value.low == value.high:
        return _short(value.median)
    return f"{_short(value.median)} ({_short(value.low)}-{_short(value.high)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
