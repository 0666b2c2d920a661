"""Who holds which block, over all replicas of a pool: a choice looks at holders, not at everyone.

For each block a bit mask of the profiles that hold it. Whoever holds a block holds all before it,
so the masks along a prompt only lose bits: where they change is found by bisection, whatever the
number of replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

# What other agents said is kept for one to two of these.
HINT_LIFE_S: Final = 600.0


def told_places(length: int) -> Iterator[int]:
    """Give the places (from 1) of those blocks of a prompt that agents tell one another.

    Four to each doubling, so that 500 blocks make 32 hashes of 8 bytes; what a prompt shares with
    another is then known to a fifth.
    """
    place = step = 1
    while place <= length:
        yield place
        if place >= 8 * step:
            step *= 2
        place += step


class PrefixIndex:
    """Masks by block. Profiles keep it; see `PrefixProfile.join`."""

    __slots__ = ("_free", "_next", "_old_hints", "_turned_at", "hints", "masks")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self._free: list[int] = []  # numbers that were given back
        self._next = 0
        self.hints: dict[int, int] = {}  # masks, of the blocks that others told of
        self._old_hints: dict[int, int] = {}
        self._turned_at = 0.0

    def take_number(self) -> int:
        """Give the number of a profile that joins: the lowest that is free."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Take back the number of a profile that leaves, its bits already removed."""
        self._free.append(number)

    def levels(self, blocks: Sequence[int], most: int) -> list[tuple[int, int]]:
        """Give how many leading blocks are held by whom, the longest matches first.

        Each level is a number of blocks and the mask of those that hold at least so many. After
        `most` levels the rest is left out: their matches are shorter.
        """
        masks = self.masks
        found: list[tuple[int, int]] = []
        depth, beyond = len(blocks), 0
        while depth and len(found) < most:
            low, high = 0, depth  # the mask of the first `low` blocks differs from `beyond`
            while low < high:
                middle = (low + high + 1) >> 1
                if masks.get(blocks[middle - 1], 0) != beyond:
                    low = middle
                else:
                    high = middle - 1
            if not low:
                break
            beyond = masks.get(blocks[low - 1], 0)  # 0: an engine dropped it before what follows
            if beyond:
                found.append((low, beyond))
            depth = low - 1
        return found

    def hear(self, blocks: Iterable[int], bit: int, now: float) -> None:
        """Note what another agent said that it placed; all of a prompt's told places or none."""
        if now - self._turned_at > HINT_LIFE_S:
            self._old_hints, self.hints, self._turned_at = self.hints, {}, now
        hints = self.hints
        for block in blocks:
            hints[block] = hints.get(block, 0) | bit

    def hinted(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Give how many leading blocks others placed where, at told places, longest first."""
        hints, old = self.hints, self._old_hints
        found: list[tuple[int, int]] = []
        if not hints and not old:
            return found
        seen = 0
        for place in reversed(list(told_places(len(blocks)))):
            block = blocks[place - 1]
            mask = (hints.get(block, 0) | old.get(block, 0)) & ~seen
            if mask:
                found.append((place, mask))
                seen |= mask
        return found

    def forget(self, bit: int) -> None:
        """Drop what others said of a replica: another process has an empty cache."""
        for hints in (self.hints, self._old_hints):
            for block, mask in list(hints.items()):
                if mask & bit:
                    hints[block] = mask & ~bit
