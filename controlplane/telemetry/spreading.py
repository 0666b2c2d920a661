"""Spreads what was counted during an outage over its steps. Pure; sums stay exact.

After an outage one report tells of minutes. Booked where it came it would be a spike that never was
beside a gap that never was. So it is kept as a *stretch*, whole steps from `begin_s` to `end_s`,
and spread when it is read: rates are then the average, which is all that is known.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

STEP_S = 5
REPLICA = b"r/"
COVERED = b"pt"  # told even when zero: a step that a report covers is no gap
UNKNOWN = b"-"
NO_GAUGES = [UNKNOWN] * 3

Row = dict[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What was counted over some whole steps; a replica's fields are without gauges."""

    begin_s: int
    end_s: int
    fields: Mapping[bytes, bytes]

    @property
    def steps(self) -> int:
        """Give the number of steps it lasts, at least one."""
        return max(1, (self.end_s - self.begin_s) // STEP_S)

    def part(self, name: bytes, count: int, begin_s: int, end_s: int) -> int:
        """Give what of `count` falls into [begin, end); the parts of all steps add up to it.

        Each field begins rounding elsewhere, else all the odd ones would fall into the same step.
        """
        phase = zlib.crc32(name) % self.steps
        first, last = self._position(begin_s), self._position(end_s)
        return (count * last + phase) // self.steps - (count * first + phase) // self.steps

    def _position(self, at_s: int) -> int:
        return min(self.steps, max(0, (at_s - self.begin_s) // STEP_S))


def covered(*, now: float, covers_s: float | None, taken_ago_s: float) -> tuple[int, int] | None:
    """Give the whole steps over which deltas were counted; None for those of the present step."""
    end = now - taken_ago_s
    begin = end - (covers_s or 0.0)
    if now - begin <= STEP_S:
        return None
    first = nearest_step(begin)
    return first, max(nearest_step(end), first + STEP_S)


def nearest_step(at: float) -> int:
    """Give the beginning of the step that is nearest: so a stretch is as long as its time."""
    return int(at + STEP_S / 2) // STEP_S * STEP_S


def fill(rows: Iterable[Row], stretches: Iterable[Stretch], start_s: int, base_s: int) -> list[Row]:
    """Give the rows of steps (or minutes) from `start_s` on, with stretches spread over them."""
    filled = [dict(row) for row in rows]
    for stretch in stretches:
        for i, row in enumerate(filled):
            begin = start_s + i * base_s
            if begin < stretch.end_s and begin + base_s > stretch.begin_s:
                _add(row, stretch, begin, begin + base_s)
    return filled


def _add(row: Row, stretch: Stretch, begin_s: int, end_s: int) -> None:
    row.setdefault(COVERED, b"0")
    for step in range(max(begin_s, stretch.begin_s), min(end_s, stretch.end_s), STEP_S):
        row.setdefault(b"n%d" % (step - begin_s), b"0")
    for name, value in stretch.fields.items():
        if name.startswith(REPLICA):
            row[name] = _with_counts(row.get(name), stretch, name, value, (begin_s, end_s))
        else:
            more = stretch.part(name, int(value), begin_s, end_s)
            if more:
                row[name] = b"%d" % (int(row.get(name, 0)) + more)


def _with_counts(
    old: bytes | None, stretch: Stretch, name: bytes, counts: bytes, slot: tuple[int, int]
) -> bytes:
    """Add to a replica's counts; its gauges stay as they are, unknown where nobody told them."""
    added = [
        UNKNOWN if n == UNKNOWN else b"%d" % stretch.part(name, int(n), *slot)
        for n in counts.split(b" ")
    ]
    known = old.split(b" ") if old else NO_GAUGES + [UNKNOWN] * len(added)
    sums = [_sum(n, more) for n, more in zip_longest(known[3:], added, fillvalue=UNKNOWN)]
    return b" ".join([*known[:3], *sums])


def _sum(old: bytes, more: bytes) -> bytes:
    """Add two counts; one that nobody tells adds nothing and stays unknown alone."""
    if UNKNOWN in (old, more):
        return more if old == UNKNOWN else old
    return b"%d" % (int(old) + int(more))
