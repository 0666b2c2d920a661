"""W3C trace context: what a caller sent, checked, and what its engine gets, with our span between.

https://www.w3.org/TR/trace-context/: a context that is not valid is replaced by a new one, and the
state that came with it is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_KEY: Final = rb"[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_MEMBER: Final = re.compile(
    rb"(?:%b)=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]" % _KEY
)
STATE_BYTES: Final = 512
STATE_MEMBERS: Final = 32
_SAMPLED: Final = 1
_NTH: Final = b"0123456789abcdef"
# The usual case, with as few steps as possible: no caller's context, not sampled.
_PLAIN: Final = tuple(b"00-%%b-%c%%b-00" % digit for digit in _NTH)

SERVER_SPAN: Final = 0  # of a request's spans; its attempts count from 1


class Caller:
    """A caller's own trace context."""

    __slots__ = ("is_sampled", "span_id", "state_line", "trace_id")

    def __init__(self, trace_id: bytes, span_id: bytes, *, is_sampled: bool) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_sampled = is_sampled
        self.state_line = b""  # the header line that goes on to the engine


def caller(headers: Mapping[bytes, bytes]) -> Caller | None:
    """Read a caller's context; `None` if it sent none that is valid."""
    found = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b""))
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    made = Caller(found[2], found[3], is_sampled=bool(int(found[4], 16) & _SAMPLED))
    state = headers.get(b"tracestate")
    if state is not None and is_sound_state(state):
        made.state_line = b"tracestate: %b\r\n" % state
    return made


def span_id(own_id: bytes, nth: int, came_with: Caller | None) -> bytes:
    """Give the id of a request's nth span.

    In a trace of its own the count of requests is enough; among a caller's spans half is random.
    """
    if came_with is None:
        return b"%c%b" % (_NTH[nth], own_id[17:])
    return b"%b%c%b" % (own_id[:7], _NTH[nth], own_id[24:])


def traceparent(own_id: bytes, nth: int, came_with: Caller | None, is_sampled: bool) -> bytes:
    """Give the context an engine gets: the caller's trace or a new one, our span as its parent."""
    if came_with is None and not is_sampled:
        return _PLAIN[nth] % (own_id, own_id[17:])
    trace_id = own_id if came_with is None else came_with.trace_id
    flags = b"01" if is_sampled else b"00"
    return b"00-%b-%b-%b" % (trace_id, span_id(own_id, nth, came_with), flags)


def is_sound_state(tracestate: bytes) -> bool:
    """Say whether a caller's trace state may travel on."""
    members = [member.strip(b" \t") for member in tracestate.split(b",")]
    members = [member for member in members if member]
    return (
        0 < len(members) <= STATE_MEMBERS
        and len(tracestate) <= STATE_BYTES
        and all(_MEMBER.fullmatch(member) for member in members)
        and len({member.partition(b"=")[0] for member in members}) == len(members)
    )
