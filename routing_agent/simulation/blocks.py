"""KV cache blocks: who holds them, which of them can be shared, which are evicted first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """A fixed number of KV blocks, some of them shared through a prefix cache.

    A block is either *private* (held by one sequence), *referenced* (its content has a hash, one or
    more sequences hold it) or *evictable* (its content is still there, nobody holds it). What is in
    none of the three is empty. Evictable blocks leave in the order in which they were let go.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._private = 0
        self._referenced: dict[int, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self.evicted: Callable[[int], None] | None = None  # is told each block that is evicted

    @property
    def used(self) -> int:
        """How many blocks sequences hold now."""
        return self._private + len(self._referenced)

    @property
    def cached(self) -> int:
        """How many blocks keep content that nobody holds."""
        return len(self._evictable)

    def __contains__(self, block: int) -> bool:
        return block in self._referenced or block in self._evictable

    def matching(self, hashes: Sequence[int], most: int | None = None) -> int:
        """Count the leading hashes whose blocks are here, `most` at most."""
        count = 0
        for block in hashes if most is None else hashes[:most]:
            if block not in self:
                break
            count += 1
        return count

    def has_room(self, *, private: int, shared: Sequence[int]) -> bool:
        """Say whether `private` new blocks fit once the `shared` ones are held too."""
        revived = sum(1 for block in shared if block in self._evictable)
        return self.used + private + revived <= self.capacity

    def hold(self, block: int) -> None:
        """Take a reference on a block that `matching` found."""
        if block in self._evictable:
            del self._evictable[block]
            self._referenced[block] = 1
        else:
            self._referenced[block] += 1

    def allocate(self, count: int) -> None:
        """Take `count` empty blocks, evicting the longest unused; the caller made sure of room."""
        self._private += count
        while self.used + len(self._evictable) > self.capacity:
            block, _ = self._evictable.popitem(last=False)
            if self.evicted is not None:
                self.evicted(block)

    def publish(self, block: int) -> bool:
        """Make a private block sharable under its hash; False if another has that content."""
        if block in self._referenced or block in self._evictable:
            return False
        self._private -= 1
        self._referenced[block] = 1
        return True

    def release(self, shared: Sequence[int], private: int) -> None:
        """Let go of a sequence's blocks; a prefix's tail is evicted before its head."""
        self._private -= private
        for block in reversed(shared):
            self._referenced[block] -= 1
            if not self._referenced[block]:
                del self._referenced[block]
                self._evictable[block] = None

    def forget(self) -> None:
        """Drop all content that nobody holds (what a cache reset does)."""
        self._evictable.clear()
