"""Request ids and trace contexts: the client's own if they are sound, else new ones."""

from __future__ import annotations

import re
from typing import Final

from routing_agent.core.chance import Chance

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/@=+\-]{1,128}")
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_BITS_OF_32: Final = 1 << 32


def new_id(chance: Chance) -> bytes:
    """Give 32 random hex digits."""
    draw = chance.randrange
    return b"%08x%08x%08x%08x" % (
        draw(_BITS_OF_32),
        draw(_BITS_OF_32),
        draw(_BITS_OF_32),
        draw(_BITS_OF_32),
    )


def request_id(given: bytes | None, chance: Chance) -> bytes:
    """Give the client's request id, or a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return new_id(chance)


def traceparent(given: bytes | None, chance: Chance) -> bytes:
    """Give the client's trace context, or the start of a new, unsampled one."""
    if given is not None and _TRACEPARENT.fullmatch(given):
        return given
    trace = new_id(chance)
    return b"00-%b-%b-00" % (trace, trace[16:])
