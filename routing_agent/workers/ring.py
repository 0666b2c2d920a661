"""Rings of what each worker placed where, for the others to read: bounded, without waiting.

Each worker writes its own ring and reads those of the others, each with a place of its own. A
reader that falls behind by more than a ring, or reads what is just being written over, skips to the
newest: it is advice, and what is lost costs a choice that could have been better, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, pack_into, unpack_from
from typing import Final

import xxhash

from routing_agent.workers.memory import RING_BYTES, RING_HEAD_WORDS, SharedMemory

# Length with this head, pool, replica, a check over what follows it (so that a torn record is told
# from a whole one), session, blocks new to the replica, tokens that it computes, tokens of a block.
_HEAD: Final = Struct("<IHHQQIId")
_CHECKED_FROM: Final = 16
_WORD: Final = 8
# A record this long says: nothing more up to the end, go on at the beginning.
_SKIP: Final = 0xFFFFFFFF
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
        self._data = (self._head + RING_HEAD_WORDS) * _WORD
        self.at = self._ints[self._head]
        self.lost = 0  # how often this reader had to skip

    def write(self, placed: Placed) -> None:
        """Add a prompt; only the ring's own worker may."""
        blocks = placed.blocks
        if len(blocks) > MOST_BLOCKS:
            blocks = blocks[:MOST_BLOCKS]
        length = _HEAD.size + _WORD * len(blocks)
        place = self.at % RING_BYTES
        if place + length > RING_BYTES:
            if RING_BYTES - place >= 4:
                pack_into("<I", self._bytes, self._data + place, _SKIP)
            self.at += RING_BYTES - place
            place = 0
        first = self._data + place
        counts = (max(placed.inserted_blocks, 0), max(placed.work_tokens, 0))
        names = (placed.pool, placed.replica, 0, placed.session)
        _HEAD.pack_into(self._bytes, first, length, *names, *counts, placed.block_tokens)
        pack_into(f"<{len(blocks)}Q", self._bytes, first + _HEAD.size, *blocks)
        check = xxhash.xxh3_64_intdigest(self._bytes[first + _CHECKED_FROM : first + length])
        pack_into("<Q", self._bytes, first + 8, check)
        self.at += length
        self._ints[self._head] = self.at

    @property
    def has_news(self) -> bool:
        """Whether anything was written since the last `read`."""
        return bool(self._ints[self._head] != self.at)

    def read(self) -> Iterator[Placed]:
        """Give what was written since the last call."""
        end = self._ints[self._head]
        if end - self.at > RING_BYTES // 2:  # the writer may be here before we are through
            self.at = end
            self.lost += 1
        while self.at < end:
            place = self.at % RING_BYTES
            first = self._data + place
            length = _SKIP
            if RING_BYTES - place >= 4:
                (length,) = unpack_from("<I", self._bytes, first)
            if length == _SKIP:
                self.at += RING_BYTES - place
                continue
            placed = self._placed(first, length, RING_BYTES - place)
            if placed is None:
                self.at = end
                self.lost += 1
                return
            self.at += length
            yield placed

    def _placed(self, first: int, length: int, room: int) -> Placed | None:
        if not _HEAD.size <= length <= room:
            return None
        content = bytes(self._bytes[first : first + length])
        _, pool, replica, check, session, *counts = _HEAD.unpack_from(content)
        if xxhash.xxh3_64_intdigest(content[_CHECKED_FROM:]) != check:
            return None
        blocks = unpack_from(f"<{(length - _HEAD.size) // _WORD}Q", content, _HEAD.size)
        inserted, work, block_tokens = counts
        return Placed((pool, replica, session), (inserted, work, block_tokens), list(blocks))
