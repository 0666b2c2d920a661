"""The stages of a request's life, worked out from the few moments that were noted on its way.

They lie end to end: the first begins when the request had come in, the last ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from routing_agent.wire import Stage

UNSEEN: Final = "its beginning cannot be seen from outside the engine, whose queue is in it"
WHOLE: Final = "with decoding: the answer came in one piece"
SILENT: Final = "no first token came"
_BAD: Final = 400


class Try(msgspec.Struct, kw_only=True):
    """One attempt's moments, in monotonic seconds."""

    replica: str
    started_at: float
    connect_s: float | None  # None: on a connection that was kept
    was_sent: bool  # false: there never was a connection
    first_token_at: float | None
    ended_at: float
    route: str
    chosen_because: str
    outcome: str = "good"
    reason: str = ""
    next: str = ""
    number: int = 1


class Life(msgspec.Struct, kw_only=True):
    """A request's moments, in monotonic seconds."""

    received_at: float
    queued_at: float | None
    tries: Sequence[Try]
    ended_at: float
    status: int
    error: str


class Stretch(msgspec.Struct):
    """One stage with its bounds."""

    stage: Stage
    began_at: float
    ended_at: float
    reason: str = ""
    estimated: bool = False


def stages_of(life: Life) -> list[Stretch]:
    """Give a life's stages in order, without a gap; the last one has no length."""
    found: list[Stretch] = []
    at = life.received_at
    for stretch in _stretches(life):
        stretch.began_at = at
        stretch.ended_at = at = min(max(stretch.ended_at, at), life.ended_at)
        found.append(stretch)
    found[-1].ended_at = end = life.ended_at  # every life has a first stage: RECEIVED
    is_bad = life.status >= _BAD
    last = Stretch("FAILED" if is_bad else "DONE", end, end, life.error if is_bad else "")
    return [*found, last]


def _stretches(life: Life) -> Iterator[Stretch]:
    """Give what follows what, by the ends."""
    first = life.tries[0].started_at if life.tries else life.ended_at
    if life.queued_at is None or life.queued_at > first:  # queued again, for another attempt
        yield Stretch("RECEIVED", 0.0, first)
    else:
        yield Stretch("RECEIVED", 0.0, life.queued_at)
        yield Stretch("QUEUED", 0.0, first, "no replica had room")
    for number, one in enumerate(life.tries, 1):
        if number > 1:
            yield Stretch("QUEUED", 0.0, one.started_at, f"before attempt {number}")
        yield from _of_try(one)


def _of_try(one: Try) -> Iterator[Stretch]:
    if not one.was_sent:
        yield Stretch("BOUND", 0.0, one.ended_at, f"to {one.replica}: no connection")
        return
    how = "on a kept connection" if one.connect_s is None else "on a new connection"
    sent_at = one.started_at + (one.connect_s or 0.0)
    yield Stretch("BOUND", 0.0, sent_at, f"to {one.replica}, {how}")
    if one.first_token_at is None:
        # What a cascade does not trust came, and went no further than the agent.
        why = WHOLE if one.outcome in ("good", "unsure") else SILENT
        yield Stretch("PREFILL", 0.0, one.ended_at, why, estimated=True)
    else:
        yield Stretch("PREFILL", 0.0, one.first_token_at, UNSEEN, estimated=True)
        yield Stretch("DECODE", 0.0, one.ended_at)
