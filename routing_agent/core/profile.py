"""What one replica's prefix cache is believed to hold, as hashes of whole prefixes.

A prompt is a chain of blocks; each hash stands for its block and all that came before it, and the
chain's seed for model version, adapter and salt: equal texts under another seed share nothing here.
The profile forgets as the engine does: least recently used first, a prefix's tail before its head,
never more than the KV cache holds. So whoever holds a block holds all before it, and how far a
prompt matches is found by bisection.

Recency is kept by prompt, not by block: each use owns the part of its prompt that no later use has
taken over from its head, and loses what is evicted from its tail, so what it owns is one run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from routing_agent.core.prefix_index import PrefixIndex

# All profiles of an agent together hold no more, however many replicas there are: some 260 MB at
# the 130 bytes that a block takes which no other replica has.
MOST_BLOCKS: Final = 2_000_000
# Until a replica's KV capacity is known: 61,000 blocks of 16 tokens, an A100-80GB with a 7B model.
DEFAULT_CAPACITY_TOKENS: Final = 976_000


class _Use:
    """One prompt that was sent, and what of it nobody used since: places `start` to `end`."""

    __slots__ = ("at", "blocks", "end", "first", "number", "start")

    def __init__(self, number: int, at: float, blocks: Sequence[int]) -> None:
        self.number = number
        self.at = at
        self.blocks = blocks
        self.first = 0  # place of blocks[0] in the prompt
        self.start = 0
        self.end = len(blocks)

    def begin_at(self, place: int) -> None:
        """Leave the head to a later use; what is no longer owned is not kept in memory for long."""
        self.start = place
        if 2 * (place - self.first) > len(self.blocks):
            self.blocks = self.blocks[place - self.first :]
            self.first = place


class PrefixProfile:
    """The blocks of one replica, the longest unused first. Times are monotonic seconds."""

    __slots__ = ("_index", "_known", "_number", "_uses", "bit", "capacity_blocks", "number")

    def __init__(self, capacity_blocks: int = 0) -> None:
        self.capacity_blocks = capacity_blocks
        self._known: dict[int, _Use] = {}  # by block, its last use
        self._uses: OrderedDict[int, _Use] = OrderedDict()  # by number, the oldest first
        self._number = 0
        self._index: PrefixIndex | None = None
        self.number = -1  # in the index; -1: in none
        self.bit = 0

    def join(self, index: PrefixIndex | None) -> None:
        """Be found through `index` from now on, and through no other; None: through none."""
        old = self._index
        if old is index:
            return
        if old is not None:
            self._unlist(self._known)
            old.forget(self.bit)
            old.give_back(self.number)
        self._index, self.number, self.bit = index, -1, 0
        if index is not None:
            self.number = index.take_number()
            self.bit = 1 << self.number
            self._list(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, block: int) -> bool:
        return block in self._known

    def used_at(self, block: int) -> float:
        """Tell when a known block was last used; 0 for one that is not."""
        use = self._known.get(block)
        return 0.0 if use is None else use.at

    def matching(self, blocks: Sequence[int]) -> int:
        """Count the leading blocks that are known; about log2 of them are looked up."""
        known = self._known
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

        Of a prompt larger than the whole cache the head is kept. `blocks` must not change later.
        """
        if len(blocks) > self.capacity_blocks:
            blocks = blocks[: self.capacity_blocks]
        if not blocks:
            return
        matching = self.matching(blocks)
        self._take_over(blocks, matching)
        self._number += 1
        use = self._uses[self._number] = _Use(self._number, now, blocks)
        known, before = self._known, len(self._known)
        for block in blocks:
            known[block] = use
        has_gaps = len(known) - before != len(blocks) - matching  # an engine dropped some between
        self._list(blocks if has_gaps else blocks[matching:])
        self._fit()

    def forget(self, blocks: Sequence[int]) -> None:
        """Note that the engine no longer holds these blocks; it too gives up tails before heads."""
        gone = [block for block in blocks if self._known.pop(block, None) is not None]
        self._unlist(gone)

    def resize(self, capacity_blocks: int) -> None:
        """Follow what is learned of the replica's KV capacity."""
        self.capacity_blocks = max(capacity_blocks, 0)
        self._fit()

    def expire(self, before: float) -> None:
        """Drop what was not used since `before`."""
        while self._uses:
            oldest = next(iter(self._uses.values()))
            if oldest.at >= before:
                break
            self._evict(oldest, oldest.end - oldest.start)

    def clear(self) -> None:
        """Forget everything: another process has an empty cache."""
        self._unlist(self._known)
        self._known.clear()
        self._uses.clear()
        if self._index is not None:
            self._index.forget(self.bit)

    def _take_over(self, blocks: Sequence[int], matching: int) -> None:
        """Take the first `matching` blocks away from the uses that own them, run by run."""
        place = matching
        while place:
            owner = self._known.get(blocks[place - 1])
            if owner is None or owner.start >= place:
                place -= 1  # a gap
                continue
            place, begin = owner.start, place
            if begin < owner.end:
                owner.begin_at(begin)
            else:
                # It is gone already where a prompt names one block twice, as made-up traces do.
                self._uses.pop(owner.number, None)

    def _fit(self) -> None:
        excess = len(self._known) - self.capacity_blocks
        while excess > 0:
            excess -= self._evict(next(iter(self._uses.values())), excess)

    def _evict(self, use: _Use, most: int) -> int:
        """Drop up to so many blocks of a use, the last ones first; give how many there were."""
        known = self._known
        gone: list[int] = []
        while use.end > use.start and len(gone) < most:
            use.end -= 1
            block = use.blocks[use.end - use.first]
            if known.get(block) is use:
                del known[block]
                gone.append(block)
        if use.end == use.start:
            del self._uses[use.number]
        self._unlist(gone)
        return len(gone)

    def _list(self, blocks: Sequence[int]) -> None:
        if self._index is None:
            return
        masks, bit = self._index.masks, self.bit
        for block in blocks:
            masks[block] = masks.get(block, 0) | bit

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
