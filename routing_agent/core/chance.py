"""Chance as a parameter: whoever calls a decision brings the dice."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """A source of random numbers; `random.Random` is one."""

    def random(self) -> float:
        """Give a number from 0 up to, but not including, 1."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Give a whole number from 0 up to, but not including, `stop`."""
        ...


class EvenOdds:
    """Chance that always lands in the middle, for questions that must not roll any dice."""

    def random(self) -> float:
        """Give one half."""
        return 0.5

    def randrange(self, stop: int, /) -> int:
        """Give the middle."""
        return stop // 2
