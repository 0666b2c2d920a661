"""Rings of what each worker placed where, for the others to read: bounded, without waiting.

Each worker writes its own ring and reads those of the others, each with a place of its own. A
reader that falls behind by more than a ring, or reads what is just being written over, skips to the
newest: it is advice, and what is lost costs a choice that could have been better, no more.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from routing_agent.workers.memory import RING_BYTES, RING_HEAD_WORDS, WORD, SharedMemory
from routing_agent.workers.placed import DECODER, ENCODER, Placed

# Before each record: a check over it, so that a torn one is told from a whole one, and its length.
_FRAME: Final = Struct("=QI")
_FRAME_BYTES: Final = 12
# In place of a check: nothing more up to the end, go on at the beginning.
_SKIP: Final = 0xFFFFFFFFFFFFFFFF
_SKIPPED: Final = _FRAME.pack(_SKIP, 0)
MOST_BLOCKS: Final = 4096  # of one prompt: a megabyte of text


class Ring:
    """One worker's ring, for its writer or for one reader."""

    __slots__ = ("_bytes", "_data", "_head", "_ints", "at", "lost")

    def __init__(self, memory: SharedMemory, worker: int) -> None:
        self._ints = memory.ints
        self._bytes = memory.bytes
        self._head = memory.ring(worker)  # a word: how many bytes were ever written
        self._data = (self._head + RING_HEAD_WORDS) * WORD
        self.at = self._ints[self._head]
        self.lost = 0  # how often this reader had to skip

    def write(self, placed: Placed) -> None:
        """Add a prompt; only the ring's own worker may."""
        if len(placed.blocks) > MOST_BLOCKS:
            placed.blocks = placed.blocks[:MOST_BLOCKS]
        body = ENCODER.encode(placed)
        record = _FRAME.pack(_check(body), len(body)) + body
        place = self.at % RING_BYTES
        room = RING_BYTES - place
        if len(record) > room:
            if room >= _FRAME_BYTES:
                self._put(place, _SKIPPED)
            self.at += room
            place = 0
        self._put(place, record)
        self.at += len(record)
        self._ints[self._head] = self.at

    def _put(self, place: int, content: bytes) -> None:
        first = self._data + place
        self._bytes[first : first + len(content)] = content

    @property
    def has_news(self) -> bool:
        """Whether anything was written since the last `read`."""
        return bool(self._ints[self._head] != self.at)

    def skip(self) -> None:
        """Pass over what was written since the last call."""
        self.at = self._ints[self._head]

    def read(self) -> list[Placed]:
        """Give what was written since the last call."""
        end = self._ints[self._head]
        if end - self.at > RING_BYTES // 2:  # the writer may be here before we are through
            self.at = end
            self.lost += 1
        found: list[Placed] = []
        while self.at < end:
            place = self.at % RING_BYTES
            size = min(end - self.at, RING_BYTES - place)
            first = self._data + place
            if not _take(bytes(self._bytes[first : first + size]), found):
                self.at = end
                self.lost += 1
                break
            self.at += size
        return found


def _take(content: bytes, found: list[Placed]) -> bool:
    """Take records out of what lies between two places; false if they were written over."""
    at, end = 0, len(content)
    while end - at >= _FRAME_BYTES:
        check, length = _FRAME.unpack_from(content, at)
        if check == _SKIP:
            break
        at += _FRAME_BYTES
        if length > end - at:
            return False
        body = content[at : at + length]
        if _check(body) != check:
            return False
        found.append(DECODER.decode(body))
        at += length
    return True


def _check(body: bytes) -> int:
    check: int = xxh3_64_intdigest(body)
    return check if check != _SKIP else 0
