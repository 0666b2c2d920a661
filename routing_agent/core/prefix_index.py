"""Who holds which block, over all replicas of a pool: a choice looks at holders, not at everyone.

For each block a bit mask of the profiles that hold it. Whoever holds a block holds all before it,
so the masks along a prompt only lose bits: where they change is found by bisection, whatever the
number of replicas.
"""

from __future__ import annotations

from collections.abc import Sequence


class PrefixIndex:
    """Masks by block. Profiles keep it; see `PrefixProfile.join`."""

    __slots__ = ("_free", "_next", "masks")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self._free: list[int] = []  # numbers that were given back
        self._next = 0

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
