"""A profile for a live engine: the one whose model comes nearest to what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from bench.model.passed import median_of
from bench.model.scenarios import Scenario
from bench.model.simulating import simulate
from routing_agent.simulation.profiles import Profile

_RATES: Final = (100.0, 10_000_000.0)  # tokens/s between which a prefill rate is looked for
_ROUNDS: Final = 4  # each looks closer, around the best of the one before
_STEPS: Final = 12
_OVERHEADS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the shortest step


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, and what a request costs outside the engine's steps."""

    profile: Profile
    outside_s: float  # HTTP, tokens to text, processes: part of every measured TTFT

    @property
    def told(self) -> dict[str, float | int]:
        """Give the figures that were found."""
        profile = self.profile
        return {
            "prefill_tokens_per_s": profile.prefill_tokens_per_s,
            "decode_step_s": profile.decode_step_s,
            "decode_step_per_sequence_s": profile.decode_step_per_sequence_s,
            "step_overhead_s": profile.step_overhead_s,
            "outside_s": self.outside_s,
            "max_running_sequences": profile.max_running_sequences,
            "step_token_budget": profile.step_token_budget,
            "context_tokens": profile.context_tokens,
            "block_tokens": profile.block_tokens,
            "kv_blocks": profile.kv_blocks,
        }


def with_decode_step(profile: Profile, tpots: Mapping[int, float]) -> Profile:
    """Fit the decode step to TPOT by sequences side by side: a straight line, by least squares."""
    counts, mean_s = list(tpots), fmean(tpots.values())
    mean = fmean(counts)
    square = sum((count - mean) ** 2 for count in counts)
    slope = sum((count - mean) * (tpots[count] - mean_s) for count in counts)
    per_sequence_s = max(0.0, slope / square) if square else 0.0
    step_s = mean_s - per_sequence_s * mean
    return replace(
        profile,
        decode_step_s=max(0.0, step_s),
        decode_step_per_sequence_s=per_sequence_s,
        step_overhead_s=0.0,
    )


def with_prefill_rate(profile: Profile, ttfts: Mapping[Scenario, float]) -> Fit:
    """Fit prefill rate and what lies outside to TTFT by prompt length, by relative error.

    So too how much of the shortest step is overhead, which prefill adds to rather than hides. The
    model itself is asked, so the fit knows its chunks and its shortest step.
    """
    alone = {_first(scenario): measured for scenario, measured in ttfts.items()}
    fits = [_at_overhead(_with_overhead(profile, share), alone) for share in _OVERHEADS]
    return min(fits, key=lambda fit: _error(fit, alone))


def _first(scenario: Scenario) -> Scenario:
    return replace(scenario, batches=scenario.batches[:1])  # the others are alike


def _with_overhead(profile: Profile, share: float) -> Profile:
    step_s = profile.decode_step_s + profile.step_overhead_s
    return replace(profile, decode_step_s=step_s * (1 - share), step_overhead_s=step_s * share)


def _at_overhead(profile: Profile, ttfts: Mapping[Scenario, float]) -> Fit:
    low, high = _RATES
    best = Fit(profile, 0.0)
    for _ in range(_ROUNDS):
        factor = (high / low) ** (1 / _STEPS)
        fits = [_at_rate(profile, low * factor**step, ttfts) for step in range(_STEPS + 1)]
        best = min(fits, key=lambda fit: _error(fit, ttfts))
        low, high = (best.profile.prefill_tokens_per_s * factor**sign for sign in (-1, 1))
    return best


def _at_rate(profile: Profile, rate: float, ttfts: Mapping[Scenario, float]) -> Fit:
    made = replace(profile, prefill_tokens_per_s=rate)
    rests = [measured - _ttft_s(made, scenario) for scenario, measured in ttfts.items()]
    return Fit(made, max(0.0, median_of(rests) or 0.0))


def _error(fit: Fit, ttfts: Mapping[Scenario, float]) -> float:
    return sum(
        abs(fit.outside_s + _ttft_s(fit.profile, scenario) - measured) / measured
        for scenario, measured in ttfts.items()
    )


def _ttft_s(profile: Profile, scenario: Scenario) -> float:
    return simulate(profile, scenario).outcomes[0].ttft_s
