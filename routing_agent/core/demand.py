"""How busy a pool is: what its replicas were given to compute lately, over what they can."""

from __future__ import annotations

from math import exp
from typing import Final

from routing_agent.core.speed import Speed

# Long enough that chance arrivals even out, short enough that a flood is seen while it comes.
LIFE_S: Final = 30.0
# From here on saved work counts in full. Below, a queue seldom forms, so that work saved at the
# price of waiting now spares nobody else anything.
BUSY: Final = 0.5


class Demand:
    """Prompt tokens that the replicas of one pool were given, older ones counting less."""

    __slots__ = ("_at", "_tokens", "busy", "replicas", "speed")

    def __init__(self, speed: Speed) -> None:
        self.speed = speed  # of one of its replicas, by and large
        self.replicas = 1  # that serve
        self.busy = 0.0  # at the last look: 0 idle, 1 from `BUSY` on
        self._tokens = 0.0
        self._at = 0.0  # monotonic seconds

    def note(self, tokens: float, now: float) -> None:
        """Count prompt tokens that have to be computed from now on."""
        self._tokens = self._left(now) + tokens
        self._at = now

    def usage(self, now: float) -> float:
        """Give what is asked of the pool as a share of what it can compute; above 1 it falls back.

        Counted are work of this agent and what others told it of theirs.
        """
        return self._left(now) / (LIFE_S * self.speed.tokens_per_s * self.replicas)

    def look_again(self, now: float) -> None:
        """Bring `busy` up to date."""
        self.busy = min(self.usage(now) / BUSY, 1.0)

    def _left(self, now: float) -> float:
        return self._tokens * exp(-max(now - self._at, 0.0) / LIFE_S)
