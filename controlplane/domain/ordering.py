"""By what a list is sorted: `ordering=-ttft_p95_s` of pages and API, read and applied to rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from controlplane.domain.errors import Invalid

Row = TypeVar("Row")

PARAMETER = "ordering"
MOST = 5  # names at once


@dataclass(frozen=True, slots=True)
class Order:
    """One column to sort by, and its direction."""

    name: str
    descending: bool = False

    def __str__(self) -> str:
        return f"-{self.name}" if self.descending else self.name


def read(text: str, known: Collection[str]) -> list[Order]:
    """Read names with commas between them, each with a minus for the largest first.

    Raises:
        Invalid: a name that the list has no column for, or too many of them.
    """
    orders = [_order(name.strip()) for name in text.split(",") if name.strip()]
    unknown = next((o.name for o in orders if o.name not in known), None)
    if unknown is not None:
        told = f"It has: {', '.join(sorted(known))}." if known else "Its order is fixed."
        raise Invalid(f"This list cannot be sorted by {unknown[:60]!r}. {told}", field=PARAMETER)
    if len(orders) > MOST:
        raise Invalid(f"A list is sorted by {MOST} columns at most.", field=PARAMETER)
    return orders


def _order(name: str) -> Order:
    return Order(name.removeprefix("-"), name.startswith("-"))


def in_order(rows: Iterable[Row], value: Callable[[Row], Any], *, descending: bool) -> list[Row]:
    """Sort rows by a value; those without one come last in both directions, equals stay."""
    found = [(_comparable(value(row)), row) for row in rows]
    known = [pair for pair in found if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in known] + [row for said, row in found if said is None]


def _comparable(value: Any) -> Any:
    """Give what compares: text without its case; None for what has no place in an order."""
    if isinstance(value, str):
        return value.casefold()
    return None if isinstance(value, float) and math.isnan(value) else value
