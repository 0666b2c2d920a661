"""How many prompt tokens a replica has yet to compute for us, and how fast it computes them.

Only the first token of an answer shows that its prompt is through. Prompts are computed in the
order in which they were sent; what the first of them has behind it by now is estimated.
"""

from __future__ import annotations

from math import exp
from typing import Final

from routing_agent.core.speed import PRIOR_TOKENS_PER_S, Speed

# The mean prompt is that of about the last so many.
MEAN_OF: Final = 16
# What replicas of equal cost were given is compared over about so long.
WORK_LIFE_S: Final = 400.0
# How busy a replica is shows over about so long: chance arrivals even out, a flood is seen while it
# comes.
USAGE_LIFE_S: Final = 90.0
# A first prompt is never believed to be further than this: an engine that stalls stays loaded.
MOST_PROGRESS: Final = 0.9


class Placement:
    """One prompt sent to a replica, until its first token or its end; see `Prefill`."""

    __slots__ = ("is_waiting", "matching", "number", "placed_at", "shows_first_token",
                 "tail_used_at", "uncached_tokens")  # fmt: skip

    def __init__(
        self, uncached_tokens: int, placed_at: float, number: int, *, shows_first_token: bool
    ) -> None:
        self.uncached_tokens = uncached_tokens
        self.placed_at = placed_at
        self.number = number
        self.shows_first_token = shows_first_token  # a plain answer comes when all is over
        self.is_waiting = True
        self.matching = 0  # blocks that the replica was believed to hold
        self.tail_used_at = 0.0  # when the last of those had last been used


class Prefill:
    """The prompts of this agent that one replica has yet to compute. Times are monotonic."""

    __slots__ = (
        "_began_at",
        "_lately",
        "_number",
        "_waiting",
        "_work",
        "_work_at",
        "is_shared",
        "mean_tokens",
        "pool_usage",
        "queued_tokens",
        "speed",
        "tokens_per_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queued_tokens = 0  # of prompts whose first token has not come
        self.mean_tokens = 0.0  # uncached, of a prompt sent here lately
        self.speed = Speed()
        self.tokens_per_s = PRIOR_TOKENS_PER_S  # as learned; see `look_again`
        self.is_shared = False  # others had requests in the engine at the last look
        self._waiting: dict[int, Placement] = {}  # in the order sent
        self._number = 0
        self._work = 0.0
        self._lately = 0.0
        self.pool_usage = 0.0  # of its pool at the last choice
        self._work_at = 0.0
        self._began_at = 0.0  # when the first of them came to be the first

    @property
    def waiting(self) -> int:
        """How many prompts wait for their first token."""
        return len(self._waiting)

    def place(
        self, uncached_tokens: int, now: float, *, shows_first_token: bool = True
    ) -> Placement:
        """Charge a prompt that was just sent, with what the replica must compute of it."""
        self._number += 1
        placement = Placement(
            max(uncached_tokens, 0), now, self._number, shows_first_token=shows_first_token
        )
        if not self._waiting:
            self._began_at = now
        self._waiting[placement.number] = placement
        self.queued_tokens += placement.uncached_tokens
        self.mean_tokens += (placement.uncached_tokens - self.mean_tokens) / MEAN_OF
        self.count_work(placement.uncached_tokens, now)
        self.look_again()
        return placement

    def look_again(self) -> None:
        """Take over what was learned since of this replica's speed, or of its pool's."""
        self.tokens_per_s = self.speed.tokens_per_s

    def count_work(self, tokens: int, now: float) -> None:
        """Count prompt tokens that it has to compute from now on into what it did lately."""
        passed_s = max(now - self._work_at, 0.0)
        self._work = self._work * exp(-passed_s / WORK_LIFE_S) + tokens
        self._lately = self._lately * exp(-passed_s / USAGE_LIFE_S) + tokens
        self._work_at = now

    def recent_work(self, now: float) -> float:
        """Give the prompt tokens it was given lately, older ones counting less."""
        return self._work * exp(-max(now - self._work_at, 0.0) / WORK_LIFE_S)

    def usage(self, now: float) -> float:
        """Give what it was given lately as a share of what it can compute; above 1 it falls back.

        Counted are prompts of this agent and what others told of theirs.
        """
        left = self._lately * exp(-max(now - self._work_at, 0.0) / USAGE_LIFE_S)
        return left / (USAGE_LIFE_S * self.tokens_per_s)

    def note_first_token(self, placement: Placement, now: float) -> None:
        """Note that a prompt is through, and learn from the time it took. Safe to call twice."""
        if placement.is_waiting:
            began = max(self._began_at, placement.placed_at)
            self._take_out(placement)
            self._began_at = now
            took_s = max(now - began, 0.0)
            self.speed.note(placement.uncached_tokens, took_s, is_shared=self.is_shared)
            self.look_again()

    def give_up(self, placement: Placement, now: float) -> None:
        """Take a prompt out that will have no first token. Safe to call twice, or after one."""
        if placement.is_waiting:
            if next(iter(self._waiting)) == placement.number:
                self._began_at = now
            self._take_out(placement)

    def backlog_tokens(self, now: float) -> float:
        """Estimate the prompt tokens still to be computed."""
        while self._waiting:
            first = next(iter(self._waiting.values()))
            done = max(now - self._began_at, 0.0) * self.tokens_per_s
            if first.shows_first_token or done < first.uncached_tokens:
                return self.queued_tokens - min(done, first.uncached_tokens * MOST_PROGRESS)
            self._began_at += first.uncached_tokens / self.tokens_per_s
            self._take_out(first)
        return float(self.queued_tokens)  # nothing, unless a replay knows better

    def clear(self) -> None:
        """Forget prompts and speed: another process has neither."""
        for placement in self._waiting.values():
            placement.is_waiting = False
        self._waiting.clear()
        self.queued_tokens = 0
        self.speed.clear()
        self.look_again()

    def _take_out(self, placement: Placement) -> None:
        placement.is_waiting = False
        del self._waiting[placement.number]
        self.queued_tokens -= placement.uncached_tokens
