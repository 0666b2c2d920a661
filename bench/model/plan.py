"""What is measured of an engine, what a profile is fitted to, and what is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.machine import BenchError
from bench.model import scenarios
from bench.model.comparison import HITS, TPOT, TTFT, TTFT_P90, WAIT, Figure
from bench.model.fitting import Fit, with_decode_step, with_prefill_rate
from bench.model.passed import Passed, median_of
from bench.model.scenarios import Scenario
from bench.model.simulating import capacity
from routing_agent.simulation.profiles import Profile

DECODE_TOKENS: Final = 64
SHARES: Final = (0.3, 0.6, 0.9)  # of capacity, as a profile fitted to one pass tells it
_SIDE_BY_SIDE: Final = (1, 2, 4, 8, 16, 32)
_SHORTEST_TO_HIT: Final = 256  # tokens; below, most of TTFT is no prefill


class Plan:
    """What is measured: some scenarios to fit a profile to, others to see what it predicts."""

    def __init__(self, longest: int, most: int, requests: int) -> None:
        self._lengths = scenarios.lengths(longest)
        self._counts = [count for count in _SIDE_BY_SIDE if count <= most]
        self._longest, self._most, self._requests = longest, most, requests

    def to_fit(self, salt: str) -> list[Scenario]:
        """Give the scenarios that choose the profile."""
        return [
            *(scenarios.prefill(tokens, salt) for tokens in self._lengths),
            *(scenarios.decode(count, DECODE_TOKENS, salt) for count in self._counts),
        ]

    def to_predict(self, salt: str, rates: Sequence[float]) -> list[Scenario]:
        """Give the scenarios that the profile was not chosen by."""
        return [
            *(
                scenarios.prefix(tokens, salt)
                for tokens in self._lengths
                if tokens >= _SHORTEST_TO_HIT
            ),
            scenarios.decode(2 * self._most, DECODE_TOKENS, salt),
            *(scenarios.load(rate, self._requests, self._longest, salt) for rate in rates),
        ]

    def fitted(self, profile: Profile, measured: Mapping[str, Sequence[Passed]]) -> Fit:
        """Choose the profile that comes nearest to what was measured."""
        tpots = {
            count: _median(measured, scenarios.decode(count, 1, ""), "tpot_s")
            for count in self._counts
        }
        prefills = [scenarios.prefill(tokens, "model") for tokens in self._lengths]
        ttfts = {scenario: _median(measured, scenario, "ttft_s") for scenario in prefills}
        return with_prefill_rate(with_decode_step(profile, tpots), ttfts)

    def rates(self, profile: Profile) -> list[float]:
        """Give the requests/s of each load, by its share of what the model gets done."""
        most = capacity(profile, scenarios.saturation(self._requests, self._longest))
        return [share * most for share in SHARES]

    def figures(self, scenario: Scenario) -> Sequence[tuple[Figure, bool]]:
        """Give what is compared in a scenario, and whether the profile was chosen by it."""
        if scenario.kind == "prefill":
            return ((TTFT, True),)
        if scenario.kind == "prefix":
            return ((TTFT, False), (HITS, False))
        if scenario.kind == "load":
            return tuple((figure, False) for figure in (TTFT, TTFT_P90, TPOT, HITS, WAIT))
        if len(scenario.batches[0]) in self._counts:
            return ((TPOT, True),)
        return ((TPOT, False), (TTFT, False), (WAIT, False))


def _median(measured: Mapping[str, Sequence[Passed]], scenario: Scenario, name: str) -> float:
    found = median_of([getattr(passed, name)(0.5) for passed in measured[scenario.name]])
    if found is None:
        raise BenchError(f"{scenario.name}: no {name} was measured")
    return found
