"""Shape pools: requests by their estimated length, and what a token weighs, learned from usage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

# Sessions that are remembered for their long pool; who was forgotten is judged by length alone.
REMEMBERED: Final = 16_384
LEARNING_RATE: Final = 0.05
LEAST_RATIO: Final = 0.25
LARGEST_RATIO: Final = 64.0


def shape_of(limits: Sequence[int | None], tokens: int) -> int | None:
    """Give the smallest limit that a prompt fits; the largest there is if it fits none.

    None among the limits stands for no limit.
    """
    known = sorted(limit for limit in set(limits) if limit is not None)
    for limit in known:
        if tokens <= limit:
            return limit
    return None if None in limits or not known else known[-1]


class ShapeMemory:
    """The shape each session had last: it keeps its pool while it fits."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, int], int | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def keep(
        self, session: tuple[str, int], limits: Sequence[int | None], tokens: int
    ) -> int | None:
        """Give the shape of a model's session now: the one it had, if its prompt fits there."""
        fitting = shape_of(limits, tokens)
        if session in self._last:
            before = self._last[session]
            if before in limits and _is_wider(before, fitting):
                fitting = before
        self._last[session] = fitting
        self._last.move_to_end(session)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return fitting


def _is_wider(one: int | None, other: int | None) -> bool:
    return one is None or (other is not None and one >= other)


class TokenRatios:
    """Bytes of prompt a token, by model, as engines' usage figures tell."""

    __slots__ = ("_learned",)

    def __init__(self) -> None:
        self._learned: dict[str, float] = {}

    def ratio(self, model: str, told: float) -> float:
        """Give what was learned, or what the table says."""
        return self._learned.get(model, told)

    def learn(self, model: str, told: float, prompt_bytes: int, prompt_tokens: int) -> None:
        """Take one finished request in."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        seen = min(max(prompt_bytes / prompt_tokens, LEAST_RATIO), LARGEST_RATIO)
        before = self._learned.get(model, told)
        self._learned[model] = before + LEARNING_RATE * (seen - before)

    def keep_only(self, models: set[str]) -> None:
        """Forget models that the table no longer has."""
        self._learned = {name: ratio for name, ratio in self._learned.items() if name in models}

    def learned(self) -> dict[str, float]:
        """Give all that was learned."""
        return self._learned.copy()
