"""The KV cache as sequences use it: claimed when they begin, grown, shared, let go."""

from __future__ import annotations

from routing_agent.simulation.blocks import BlockPool
from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.sequences import Sequence, blocks_for


class Memory:
    """The blocks of one engine, and what of them each sequence holds."""

    def __init__(self, profile: Profile) -> None:
        self.pool = BlockPool(profile.kv_blocks)
        self._block_tokens = profile.block_tokens
        self._is_caching = profile.prefix_cache

    @property
    def room(self) -> int:
        """How many blocks no sequence holds."""
        return self.pool.capacity - self.pool.used

    def matching(self, sequence: Sequence) -> int:
        """Count its leading blocks that are in the cache."""
        if not self._is_caching:
            return 0
        # The last token is always computed: its output is what makes the next one.
        most = (sequence.known_tokens - 1) // self._block_tokens
        return self.pool.matching(sequence.request.block_hashes, most)

    def claim(self, sequence: Sequence) -> bool:
        """Hold every block the known tokens need, shared ones first; False leaves nothing held."""
        matching = self.matching(sequence)
        shared = list(sequence.request.block_hashes[:matching])
        needed = blocks_for(sequence.known_tokens, self._block_tokens) - matching
        if not self.pool.has_room(private=needed, shared=shared):
            return False
        for block in shared:
            self.pool.hold(block)
        self.pool.allocate(needed)
        sequence.shared, sequence.private = shared, needed
        sequence.published = matching
        sequence.computed = matching * self._block_tokens
        return True

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Hold as many blocks as `tokens` need; False if there is no room and nothing changed."""
        missing = blocks_for(tokens, self._block_tokens) - sequence.blocks
        if missing > 0:
            if missing > self.room:
                return False
            self.pool.allocate(missing)
            sequence.private += missing
        return True

    def publish(self, sequence: Sequence) -> None:
        """Share the blocks that are full by now."""
        hashes = sequence.request.block_hashes
        if not self._is_caching or sequence.published >= len(hashes):
            return
        full = min(sequence.computed // self._block_tokens, len(hashes))
        for block in hashes[sequence.published : full]:
            if self.pool.publish(block):
                sequence.shared.append(block)
                sequence.private -= 1
        sequence.published = max(sequence.published, full)

    def free(self, sequence: Sequence) -> None:
        """Let go of all its blocks; what is shared stays until its place is needed."""
        self.pool.release(sequence.shared, sequence.private)
        sequence.shared, sequence.private = [], 0
