"""HTTP's chunked framing (RFC 9112, section 7.1), as far as it can do without a parser."""

from __future__ import annotations

from typing import Final

# A token's event takes 150 to 400 bytes; what is longer goes the usual way.
_LONGEST: Final = 2048


def only_chunk(data: bytes) -> bytes:
    """Give what is in the one whole chunk that `data` is; b"" if it is anything else.

    Only of data that begins where a chunk does. What ends a body is something else, too.
    """
    size = len(data)
    if size >= _LONGEST:
        return b""
    head = _HEADS[size]
    if head != b"" and data.startswith(head) and data.endswith(b"\r\n"):
        return data[len(head) : size - 2]
    return b""


def _heads() -> list[bytes]:
    """Give how a chunk without extensions begins, by how long it is in all; b"" if none is."""
    heads = [b""] * _LONGEST
    for length in range(1, _LONGEST):
        head = b"%x\r\n" % length
        whole = len(head) + length + 2
        if whole < _LONGEST:
            heads[whole] = head
    return heads


_HEADS: Final = _heads()
