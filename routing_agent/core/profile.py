"""What one replica's prefix cache is believed to hold, as hashes of whole prefixes.

A prompt is a chain of blocks; each hash stands for its block and all that came before it, and the
chain's seed for model version, adapter and salt: equal texts under another seed share nothing here.
The profile forgets as the engine does: least recently used first, a prefix's tail before its head,
never more than the KV cache holds. So whoever holds a block holds all before it, and how far a
prompt matches is found by bisection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from routing_agent.core.prefix_index import PrefixIndex

# Until a replica's KV capacity is known: 61,000 blocks of 16 tokens, an A100-80GB with a 7B model.
DEFAULT_CAPACITY_TOKENS: Final = 976_000


class PrefixProfile:
    """The blocks of one replica, the longest unused first. Times are monotonic seconds."""

    __slots__ = ("_index", "_used_at", "bit", "capacity_blocks", "number")

    def __init__(self, capacity_blocks: int = 0) -> None:
        self.capacity_blocks = capacity_blocks
        self._used_at: OrderedDict[int, float] = OrderedDict()
        self._index: PrefixIndex | None = None
        self.number = -1  # in the index; -1: in none
        self.bit = 0

    def join(self, index: PrefixIndex | None) -> None:
        """Be found through `index` from now on, and through no other; None: through none."""
        old = self._index
        if old is index:
            return
        if old is not None:
            self._unlist(self._used_at)
            old.forget(self.bit)
            old.give_back(self.number)
        self._index, self.number, self.bit = index, -1, 0
        if index is not None:
            self.number = index.take_number()
            self.bit = 1 << self.number
            for block in self._used_at:
                index.masks[block] = index.masks.get(block, 0) | self.bit

    def __len__(self) -> int:
        return len(self._used_at)

    def __contains__(self, block: int) -> bool:
        return block in self._used_at

    def used_at(self, block: int) -> float:
        """Tell when a known block was last used; 0 for one that is not."""
        return self._used_at.get(block, 0.0)

    def matching(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks that are known; about log2 of them are looked up."""
        known = self._used_at
        if not blocks or blocks[0] not in known:
            return 0
        low, high = 1, len(blocks)  # the first `low` are known
        while low < high:
            middle = (low + high + 1) >> 1
            if blocks[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low

    def insert(self, blocks: Sequence[int], now: float) -> None:
        """Note that the replica was given a prompt: all of it is in its cache soon.

        Of a prompt larger than the whole cache the head is kept.
        """
        known, index, bit = self._used_at, self._index, self.bit
        for block in reversed(blocks[: self.capacity_blocks]):
            if block in known:
                known.move_to_end(block)
            elif index is not None:
                index.masks[block] = index.masks.get(block, 0) | bit
            known[block] = now
        self._fit()

    def forget(self, blocks: Sequence[int]) -> None:
        """Note that the engine no longer holds these blocks; it too gives up tails before heads."""
        gone = [block for block in blocks if self._used_at.pop(block, None) is not None]
        self._unlist(gone)

    def resize(self, capacity_blocks: int) -> None:
        """Follow what is learned of the replica's KV capacity."""
        self.capacity_blocks = max(capacity_blocks, 0)
        self._fit()

    def expire(self, before: float) -> None:
        """Drop what was not used since `before`."""
        known = self._used_at
        count = 0
        for used_at in known.values():
            if used_at >= before:
                break
            count += 1
        gone = list(islice(known, count))
        for block in gone:
            del known[block]
        self._unlist(gone)

    def clear(self) -> None:
        """Forget everything: another process has an empty cache."""
        self._unlist(self._used_at)
        self._used_at.clear()
        if self._index is not None:
            self._index.forget(self.bit)

    def _fit(self) -> None:
        excess = len(self._used_at) - self.capacity_blocks
        if excess > 0:
            self._unlist([self._used_at.popitem(last=False)[0] for _ in range(excess)])

    def _unlist(self, blocks: Iterable[int]) -> None:
        if self._index is None:
            return
        masks, others = self._index.masks, ~self.bit
        for block in blocks:
            left = masks[block] & others
            if left:
                masks[block] = left
            else:
                del masks[block]
