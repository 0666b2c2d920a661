"""What became of a copied request: the same answer, another one, or none. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from routing_agent import wire

Outcome = Literal["same", "differs", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("same", "differs", "failed")
_OK: Final = 200


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
