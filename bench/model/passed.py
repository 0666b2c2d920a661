"""What came of a scenario, live or simulated: the same figures of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing_agent.simulation.results import percentile


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Seconds; `None`: it had fewer than two tokens."""

    ttft_s: float
    tpot_s: float | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Passed:
    """One pass through a scenario."""

    outcomes: tuple[Outcome, ...]
    queue_wait_s: float | None  # mean, inside the engine

    def ttft_s(self, share: float) -> float | None:
        """Give a percentile of the time to the first token."""
        return percentile(sorted(o.ttft_s for o in self.outcomes), share)

    def tpot_s(self, share: float) -> float | None:
        """Give a percentile of the time per token."""
        return percentile(sorted(o.tpot_s for o in self.outcomes if o.tpot_s is not None), share)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return sum(o.cached_tokens for o in self.outcomes)


def median_of(values: Sequence[float | None]) -> float | None:
    """Give the middle value; `None` if any is missing."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known and len(known) == len(values) else None
