"""What became of a copied request: the same answer, another one, or none. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from routing_agent import wire

Outcome = Literal["same", "differs", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("same", "differs", "failed")
_OK: Final = 200
# What becomes of copies, as agents count them (signalbox_shadow_total).
COPIES: Final[Mapping[str, str]] = {
    "answered": "answered",
    "failed": "failed",
    "timed_out": "gave up: the shadow was too slow",
    "cancelled": "ended: their client left",
    "evicted": "ended: their place was needed",
    "dropped_limit": "not made: as many were under way as may be",
    "dropped_load": "not made: the shadow pool was busy",
    "dropped_no_replica": "not made: no shadow replica was ready",
}


def outcome(pair: wire.ShadowPair) -> Outcome:
    """Say what became of the shadow's answer, beside the primary's."""
    if pair.shadow.error or pair.shadow.status != _OK:
        return "failed"
    return "same" if pair.is_same else "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A text cut where two answers begin to differ."""

    same: str
    rest: str


def marked(text: str, first_difference: int | None) -> Marked:
    """Cut a text where it begins to differ; one that does not is the same as a whole."""
    if first_difference is None:
        return Marked(same=text, rest="")
    return Marked(same=text[:first_difference], rest=text[first_difference:])


def copies_told(counts: Iterable[Mapping[str, int]]) -> list[tuple[str, int]]:
    """Add up what agents tell became of copies, each outcome in words, in a fixed order.

    An outcome that this version does not know keeps its name and comes last.
    """
    total: Counter[str] = Counter()
    for told in counts:
        total.update(told)
    known = [(words, total[name]) for name, words in COPIES.items() if total[name]]
    return known + sorted((n, total[n]) for n in total if n not in COPIES)
