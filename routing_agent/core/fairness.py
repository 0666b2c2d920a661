"""Fair shares between the tenants that wait for one pool: virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant's counter
rises by the tokens it is served, output weighted twice; who has the lowest is served next; who
comes back to the queue is lifted to the lowest counter of those who wait there, so that nobody
saves up while they ask for nothing. Nothing is counted while nobody waits.

Different from the paper, where the engine tells of each token: a request is charged when it leaves
the queue, with the output its tenant's answers usually have, and corrected when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PROMPT_WEIGHT: Final = 1.0
OUTPUT_WEIGHT: Final = 2.0  # as in the paper, and about what both cost an engine
# Each answer counts for this much in what its tenant's answers usually have.
LEARNING_RATE: Final = 0.1
# Tenants remembered a pool; beyond, those go whose counter no longer matters.
REMEMBERED: Final = 1024


def weighted(prompt_tokens: float, output_tokens: float) -> float:
    """Give what tokens count for."""
    return PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens


class FairShares:
    """The counters of one pool's tenants. They say who comes next, not how much there is."""

    __slots__ = ("_counters", "_floor", "_last", "_outputs")

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._outputs: dict[str, float] = {}  # tokens that a tenant's answers usually have
        self._floor = 0.0  # of the counters that are forgotten
        self._last = ""  # who left the queue last

    def __len__(self) -> int:
        return len(self._counters)

    def counter(self, tenant: str) -> float:
        """Give a tenant's counter."""
        return self._counters.get(tenant, 0.0)

    def counters(self) -> dict[str, float]:
        """Give all counters that are remembered."""
        return self._counters.copy()

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """Note that a tenant of whom nobody waited waits now, beside those of `waiting`."""
        last = max(self.counter(self._last), self._floor)
        floor = min((self.counter(other) for other in waiting), default=last)
        if len(self._counters) >= REMEMBERED:
            self._forget(floor)
        self._counters[tenant] = max(self.counter(tenant), floor)

    def serve(self, tenant: str, prompt_tokens: int, output_tokens: int) -> float:
        """Charge a tenant for a request that leaves the queue; give the charge.

        Args:
            output_tokens: what to expect of a tenant of whom no answer is known.
        """
        charge = weighted(prompt_tokens, self._outputs.get(tenant, output_tokens))
        self._counters[tenant] = self.counter(tenant) + charge
        return charge

    def settle(self, tenant: str, charged: float, prompt_tokens: int, output_tokens: int) -> None:
        """Correct a charge to what was really used, now that the answer is over."""
        usual = self._outputs.get(tenant)
        if usual is None:
            self._outputs[tenant] = float(output_tokens)
        else:
            self._outputs[tenant] = usual + LEARNING_RATE * (output_tokens - usual)
        if tenant in self._counters:
            self._counters[tenant] += weighted(prompt_tokens, output_tokens) - charged

    def charged_elsewhere(self, tenant: str, amount: float) -> None:
        """Count what another process charged a tenant, or gave back."""
        self._counters[tenant] = self.counter(tenant) + amount

    def leave(self, tenant: str) -> None:
        """Note that nobody of a tenant waits any more."""
        self._last = tenant

    def _forget(self, floor: float) -> None:
        """Forget tenants whose counter would be lifted anyway when they come back."""
        self._floor = floor
        kept = {tenant: n for tenant, n in self._counters.items() if n > floor}
        self._counters = kept
        self._outputs = {tenant: n for tenant, n in self._outputs.items() if tenant in kept}
