"""Interleaved rounds: in each, every case meets every peer, one right after the other.

The ratios of one round thus meet the same machine, whatever else it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.load import Load, Result, percentile_ms
from bench.load import run as run_load
from bench.machine import BenchError, progress
from bench.peers import ENGINE, OURS, Field
from bench.report import Quantity

MANY = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    seconds: float
    peers: tuple[str, ...]
    is_quick: bool = False

    @property
    def many(self) -> int:
        """How many connections are many."""
        return 100 if self.is_quick else MANY


@dataclass(frozen=True, slots=True)
class Case:
    """One load, put on every peer in each round."""

    key: str
    title: str  # of the column: how many connections
    load: Load
    slow: Load  # for slow peers
    with_engine: bool = False  # the engines are asked directly too: the floor of every latency

    @property
    def is_big(self) -> bool:
        """Whether slow peers get it in one round only."""
        return self.load.connections >= MANY // 10


@dataclass(slots=True)
class Outcome:
    """What was measured: by case and peer, one result a round."""

    results: dict[str, dict[str, list[Result | None]]] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    dead: dict[str, str] = field(default_factory=dict)  # peers that ended meanwhile, and why

    def quantity(
        self,
        case: Case,
        key: str,
        unit: str,
        measure: Callable[[Result], float | None],
        *,
        title: str = "",
    ) -> Quantity:
        """Give one figure of a case, of all that is in front of the engines."""
        rounds = {
            peer: [None if result is None else measure(result) for result in results]
            for peer, results in self.results[case.key].items()
            if peer != ENGINE
        }
        return Quantity(key, title or case.title, unit, rounds)

    def added_ms(
        self, case: Case, key: str, share: float, values: Callable[[Result], list[float]]
    ) -> Quantity:
        """Give what each peer adds, round by round, to what the engines take themselves."""
        results = self.results[case.key]
        floor = [_percentile(result, share, values) for result in results[ENGINE]]
        rounds = {
            peer: [
                None if ms is None or own is None else ms - own
                for ms, own in zip(
                    [_percentile(r, share, values) for r in found], floor, strict=True
                )
            ]
            for peer, found in results.items()
            if peer != ENGINE
        }
        title = f"{case.title}, P{share * 100:.0f}"
        return Quantity(key, title, "ms", rounds, has_ratio=False)

    def memory(self, case: Case, key: str) -> Quantity:
        """Give the most memory in the first round: later ones only add what was kept."""
        quantity = self.quantity(case, key, "MiB", lambda result: result.memory_mib)
        first = {peer: values[:1] for peer, values in quantity.rounds.items()}
        return replace(quantity, rounds=first, has_ratio=False)

    def told_problems(self) -> list[str]:
        """Give what went wrong as sentences."""
        wrong = [f"{where}: {count:,} x" for where, count in self.problems.items()]
        return wrong + [f"{peer} ended during the run: {why}" for peer, why in self.dead.items()]


def _percentile(
    result: Result | None, share: float, values: Callable[[Result], list[float]]
) -> float | None:
    return None if result is None else percentile_ms(values(result), share)


def run(name: str, found: Field, plan: Plan, cases: Sequence[Case]) -> Outcome:
    """Measure all cases in all rounds."""
    outcome = Outcome()
    for number in range(1, plan.rounds + 1):
        for case in cases:
            for peer in _turns(found, case, number):
                progress(f"{name}, round {number} of {plan.rounds}: {case.key} through {peer}")
                result = _measure(found, case, peer, number, outcome)
                outcome.results.setdefault(case.key, {}).setdefault(peer, []).append(result)
    progress("")
    for case in cases:  # tables keep the order of the peers, whoever was first in a round
        results = outcome.results[case.key]
        outcome.results[case.key] = {p: results[p] for p in found.running if p in results}
    return outcome


def _turns(found: Field, case: Case, number: int) -> list[str]:
    """Give who is measured, in an order that changes from round to round."""
    peers = [peer for peer in found.running if peer != ENGINE or case.with_engine]
    at = number % len(peers)
    return peers[at:] + peers[:at]


def _measure(found: Field, case: Case, peer: str, number: int, outcome: Outcome) -> Result | None:
    is_slow = peer in found.slow
    if peer in outcome.dead or (is_slow and case.is_big and number > 1):
        return None
    process = found.running[peer]
    asked = case.slow if is_slow else case.load
    result = run_load(asked, found.ports(peer), None if peer == ENGINE else process)
    for what, count in result.problems.items():
        outcome.problems[f"{peer}, {case.key}: {what}"] += count
    if not process.is_alive:
        if peer in (ENGINE, OURS):
            raise BenchError(f"{peer} ended during the run. {process.last_words()}")
        outcome.dead[peer] = process.last_words()
    return result if result.answered else None
