"""Rings of what each worker placed where, for the others to read: bounded, without waiting.

Each worker writes its own ring and reads those of the others, each with a place of its own. A
reader that falls behind by more than a ring, or reads what is just being written over, skips to the
newest: it is advice, and what is lost costs a choice that could have been better, no more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest

from routing_agent.workers.memory import RING_BYTES, RING_HEAD_WORDS, WORD, SharedMemory

# A check over what follows it (so that a torn record is told from a whole one), length with that,
# pool, replica, session, blocks new to the replica, tokens that it computes, tokens of a block;
# then its blocks. All lengths are whole words.
_RECORD: Final = Struct("=QIHHQIId")
_BODY: Final = Struct("=IHHQIId")
_CHECK: Final = Struct("=Q")
_CHECKED_FROM: Final = 8
_BLOCKS_AT: Final = 40
# In place of a check: nothing more up to the end, go on at the beginning.
_SKIP: Final = 0xFFFFFFFFFFFFFFFF
MOST_BLOCKS: Final = 4096  # of one prompt: a megabyte of text


class Placed:
    """One prompt that a worker placed."""

    __slots__ = ("block_tokens", "blocks", "inserted_blocks", "pool", "replica", "session",
                 "work_tokens")  # fmt: skip

    def __init__(
        self, names: tuple[int, int, int], counts: tuple[int, int, float], blocks: Sequence[int]
    ) -> None:
        self.pool, self.replica, self.session = names  # slots, and a hash
        self.inserted_blocks, self.work_tokens, self.block_tokens = counts
        self.blocks = blocks


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
        blocks = placed.blocks
        if len(blocks) > MOST_BLOCKS:
            blocks = blocks[:MOST_BLOCKS]
        body = _BODY.pack(
            _BLOCKS_AT + WORD * len(blocks), placed.pool, placed.replica, placed.session,
            max(placed.inserted_blocks, 0), max(placed.work_tokens, 0), placed.block_tokens,
        ) + array("Q", blocks).tobytes()  # fmt: skip
        place = self.at % RING_BYTES
        if place + _CHECKED_FROM + len(body) > RING_BYTES:
            self._put(place, _CHECK.pack(_SKIP))
            self.at += RING_BYTES - place
            place = 0
        self._put(place, _CHECK.pack(_check(body)) + body)
        self.at += _CHECKED_FROM + len(body)
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
    while end - at >= _BLOCKS_AT:
        check, length, pool, replica, session, inserted, work, block_tokens = _RECORD.unpack_from(
            content, at
        )
        if check == _SKIP:
            break
        if not _BLOCKS_AT <= length <= end - at:
            return False
        if _check(content[at + _CHECKED_FROM : at + length]) != check:
            return False
        blocks = array("Q", content[at + _BLOCKS_AT : at + length]).tolist()
        found.append(Placed((pool, replica, session), (inserted, work, block_tokens), blocks))
        at += length
    return True


def _check(body: bytes) -> int:
    check: int = xxh3_64_intdigest(body)
    return check if check != _SKIP else 0
