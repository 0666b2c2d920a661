"""What a replica has yet to compute where several processes send to it.

An engine computes prompts in the order in which they come, whoever sent them: so the first of all
is the one that is being computed, and its time counts from when the one before it was through.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from routing_agent.core.prefill import MOST_PROGRESS, Placement, Prefill
from routing_agent.core.profile import PrefixProfile
from routing_agent.workers.memory import (
    DONE_AT,
    FIRST_AT,
    FIRST_TOKENS,
    QUEUED_TOKENS,
    REPLICA_CELLS,
    WAITING_PROMPTS,
    WORD,
    SharedMemory,
)

_MICROSECONDS: Final = 1e6
# Of one process: queued tokens, waiting prompts, tokens and time of the first, when one was done.
_CELLS: Final = Struct("5q")


class SharedPrefill(Prefill):
    """One process's prompts at a replica, with what it sees of the others'."""

    __slots__ = ("_at", "_bytes", "_done_at", "others_done_at", "others_first_at",
                 "others_first_tokens", "others_queued_tokens")  # fmt: skip

    def __init__(self, memory: SharedMemory, at: int) -> None:
        super().__init__()
        self._bytes = memory.bytes
        self._at = (at + QUEUED_TOKENS) * WORD
        self._done_at = 0.0  # when the last of ours was through
        self.others_queued_tokens = 0
        self.others_first_at = 0.0  # when the one that they have there for longest was sent
        self.others_first_tokens = 0
        self.others_done_at = 0.0

    def look(self, row: tuple[int, ...], own: int) -> None:
        """Take in the cells of all workers at this replica, of which ours begin at `own`."""
        queued = first_at = done_at = 0
        for cell in range(0, len(row), REPLICA_CELLS):
            if cell == own:
                continue
            queued += row[cell + QUEUED_TOKENS]
            if row[cell + DONE_AT] > done_at:
                done_at = row[cell + DONE_AT]
            at = row[cell + FIRST_AT]
            if at and (not first_at or at < first_at):
                first_at = at
                self.others_first_tokens = row[cell + FIRST_TOKENS]
        self.others_queued_tokens = queued
        self.others_done_at = done_at / _MICROSECONDS
        self.others_first_at = first_at / _MICROSECONDS

    def place(
        self, uncached_tokens: int, now: float, *, shows_first_token: bool = True
    ) -> Placement:
        """Charge a prompt that was just sent, with what the replica must compute of it."""
        placement = super().place(uncached_tokens, now, shows_first_token=shows_first_token)
        self._tell()
        return placement

    def note_first_token(self, placement: Placement, now: float) -> None:
        """Note that a prompt is through, and learn from the time it took. Safe to call twice."""
        if placement.is_waiting:
            if self.others_done_at > self._began_at:
                self._began_at = self.others_done_at
            self._done_at = now
            super().note_first_token(placement, now)  # and tells

    def backlog_tokens(self, now: float) -> float:
        """Estimate the prompt tokens still to be computed, those of other processes included."""
        super().backlog_tokens(now)  # lets go of what is through but does not show it
        if not self.others_queued_tokens and not self.queued_tokens:
            return 0.0
        at, tokens = self.others_first_at, self.others_first_tokens
        first = next(iter(self._waiting.values()), None)
        if first is not None and (not self.others_queued_tokens or first.placed_at <= at):
            at, tokens = first.placed_at, first.uncached_tokens
        began_at = max(at, self._done_at, self.others_done_at)
        done = max(now - began_at, 0.0) * self.tokens_per_s
        left = self.others_queued_tokens + self.queued_tokens
        return left - min(done, tokens * MOST_PROGRESS)

    def clear(self) -> None:
        """Forget prompts and speed: another process has neither."""
        super().clear()
        self._tell()

    def _take_out(self, placement: Placement) -> None:
        super()._take_out(placement)
        self._tell()

    def _tell(self) -> None:
        tokens = placed_at = 0
        for first in self._waiting.values():
            tokens, placed_at = first.uncached_tokens, int(first.placed_at * _MICROSECONDS)
            break
        done_at, waiting = int(self._done_at * _MICROSECONDS), len(self._waiting)
        queued = self.queued_tokens
        _CELLS.pack_into(self._bytes, self._at, queued, waiting, tokens, placed_at, done_at)


class WatchedPrefill(Prefill):
    """What all workers together have yet to see computed: the supervisor sends nothing itself."""

    __slots__ = ("_ints", "_row", "_row_end")

    def __init__(self, memory: SharedMemory, row: int) -> None:
        super().__init__()
        self._ints = memory.ints
        self._row, self._row_end = row, row + memory.replica_words

    def look_again(self) -> None:
        """Learn nothing here: the speed is what the workers tell."""

    @property
    def waiting(self) -> int:
        """How many prompts wait for their first token."""
        return self._sum(WAITING_PROMPTS)

    def backlog_tokens(self, now: float) -> float:
        """Give the prompt tokens still to be computed, those under way included."""
        return float(self._sum(QUEUED_TOKENS))

    def _sum(self, cell: int) -> int:
        return sum(self._ints[self._row + cell : self._row_end : REPLICA_CELLS].tolist())


class WatchedProfile(PrefixProfile):
    """What all workers together believe of a replica's cache: the supervisor places nothing."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = 0

    def __len__(self) -> int:
        return self.blocks
