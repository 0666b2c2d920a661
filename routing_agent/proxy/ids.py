"""Request ids: the client's own if it is sound, else a new one."""

from __future__ import annotations

import re
from itertools import count
from secrets import token_hex
from typing import Final

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/@=+\-]{1,128}")


class IdSource:
    """Gives ids of 32 hex digits that no other process gives: a random half and a count.

    Cheaper than a random number each, and still unique; nothing secret hangs on them.
    """

    __slots__ = ("_count", "_prefix")

    def __init__(self) -> None:
        self._prefix = token_hex(8).encode()
        self._count = count(1)

    def new(self) -> bytes:
        """Give a new id."""
        return b"%b%016x" % (self._prefix, next(self._count))


def is_sound(request_id: bytes) -> bool:
    """Say whether a client's request id may travel on."""
    return _REQUEST_ID.fullmatch(request_id) is not None
