"""How fast a replica computes prompts, learned from the time that ours took there."""

from __future__ import annotations

from math import exp
from typing import Final

# Until anything is measured: about what an A100-80GB does with a 7B model.
PRIOR_TOKENS_PER_S: Final = 4300.0
# That figure weighs as much as so many seconds of measured work, and is forgotten with it.
PRIOR_S: Final = 0.5
# Of a replica, its pool's speed always weighs as much as so many seconds of its own.
POOL_PRIOR_S: Final = 5.0
# Measured work older than this many busy seconds counts for a third of new work.
MEMORY_S: Final = 60.0
# While requests of others are in the engine too, ours take longer than they would.
SHARED_WEIGHT: Final = 0.05


class Speed:
    """Running sums of tokens and seconds. A replica's lean on what its whole pool shows by now."""

    __slots__ = ("_seconds", "_tokens", "pool")

    def __init__(self) -> None:
        self.pool: Speed | None = None
        self.clear()

    @property
    def tokens_per_s(self) -> float:
        """How many prompt tokens are computed in a second, at least one."""
        tokens, seconds = self._tokens, self._seconds
        if self.pool is not None:
            tokens += self.pool.tokens_per_s * POOL_PRIOR_S
            seconds += POOL_PRIOR_S
        return max(tokens / seconds, 1.0)

    def clear(self) -> None:
        """Forget what was measured."""
        self._seconds = PRIOR_S if self.pool is None else 0.0
        self._tokens = PRIOR_TOKENS_PER_S * self._seconds

    def join(self, pool: Speed) -> None:
        """Lean on a pool's speed, and teach it what is learned here."""
        if self.pool is None:
            self._tokens = self._seconds = 0.0
        self.pool = pool

    def note(self, tokens: int, took_s: float, *, is_shared: bool = False) -> None:
        """Take in what one prompt took.

        Prompts computed at once end together: the first takes all the time, the others none, and
        the sums are right all the same.
        """
        weight = SHARED_WEIGHT if is_shared else 1.0
        kept = exp(-took_s * weight / MEMORY_S)
        self._tokens = self._tokens * kept + tokens * weight
        self._seconds = self._seconds * kept + took_s * weight
        if self.pool is not None:
            self.pool.note(tokens, took_s, is_shared=is_shared)
