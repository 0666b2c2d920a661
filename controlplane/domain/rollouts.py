"""Rollouts: which move comes next, and why. Pure: state, analysis and time in, decision out.

Phases and verdicts are named as Argo Rollouts names them. A rollout moves the weight of one pool
(stable) to another (canary) of the same model, step by step; every step has a bake time, which only
runs while figures arrive, and a least number of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from controlplane.domain.analysis import Analysis, Verdict

DEFAULT_STEPS: Final = (1.0, 5.0, 25.0, 100.0)
BAKE_S: Final = 600.0
MIN_REQUESTS: Final = 200
REGRESSION_LIMIT: Final = 0.10
# What stays unproven for so many bake times is a matter for a person.
PATIENCE_BAKES: Final = 3.0
# A pause of the loop longer than this is not counted: nobody looked.
LONGEST_TICK_S: Final = 60.0


class Phase(StrEnum):
    """Where a rollout is."""

    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"  # finished: the canary has everything
    DEGRADED = "Degraded"  # over: stable has everything again


class Event(StrEnum):
    """What happens to a rollout."""

    ADVANCE = "advance"  # a step passed, or a person promoted it
    FINISH = "finish"  # the last step passed
    PAUSE = "pause"
    RESUME = "resume"
    FAIL = "fail"  # the analysis failed
    ABORT = "abort"  # a person stopped it


MOVES: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.PROGRESSING: {
        Event.ADVANCE: Phase.PROGRESSING,
        Event.FINISH: Phase.HEALTHY,
        Event.PAUSE: Phase.PAUSED,
        Event.FAIL: Phase.DEGRADED,
        Event.ABORT: Phase.DEGRADED,
    },
    Phase.PAUSED: {
        Event.ADVANCE: Phase.PROGRESSING,
        Event.FINISH: Phase.HEALTHY,
        Event.RESUME: Phase.PROGRESSING,
        Event.FAIL: Phase.DEGRADED,
        Event.ABORT: Phase.DEGRADED,
    },
    Phase.HEALTHY: {},
    Phase.DEGRADED: {},
}
RUNNING: Final = tuple(phase for phase, moves in MOVES.items() if moves)


def next_phase(phase: Phase, event: Event) -> Phase | None:
    """Give where an event leads; None when it cannot happen there."""
    return MOVES[phase].get(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rollout at one step, as a decision needs it."""

    phase: Phase
    index: int
    percents: tuple[float, ...]
    bake_s: float
    baked_s: float = 0.0  # of this step
    is_observed: bool  # every agent that we hear obeys this step's weights
    held_by: str = ""  # what keeps the weights from being moved on: a spent error budget
    drifted: str = ""  # how the weights differ from what this step set; "" when they do not

    @property
    def is_last(self) -> bool:
        """Say whether the canary has everything."""
        return self.index + 1 >= len(self.percents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now: an event, or none; how long the step has baked; why, in words."""

    event: Event | None
    reason: str
    baked_s: float


def decide(step: Step, analysis: Analysis, *, elapsed_s: float) -> Decision:
    """Say what to do with a running rollout, `elapsed_s` seconds after it was last looked at."""
    if analysis.verdict is Verdict.FAILED:
        return Decision(event=Event.FAIL, reason=analysis.reason, baked_s=step.baked_s)
    if step.phase is Phase.PAUSED:
        return Decision(event=None, reason="paused", baked_s=step.baked_s)
    if step.drifted:
        return Decision(event=Event.PAUSE, reason=step.drifted, baked_s=step.baked_s)
    if not step.is_observed:
        return _hold("not every agent obeys this step's weights yet", step.baked_s)
    if not analysis.has_data:
        return _hold(analysis.reason, step.baked_s)
    return _after(step, analysis, step.baked_s + min(max(elapsed_s, 0.0), LONGEST_TICK_S))


def _after(step: Step, analysis: Analysis, baked_s: float) -> Decision:
    """Say what to do with a step that is obeyed and measured."""
    if baked_s < step.bake_s:
        return _hold(f"baking: {baked_s:.0f} of {step.bake_s:.0f} s; {analysis.reason}", baked_s)
    if not analysis.has_enough:
        return _hold(f"baked, waiting for requests: {analysis.reason}", baked_s)
    if analysis.verdict is Verdict.INCONCLUSIVE:
        if baked_s < PATIENCE_BAKES * step.bake_s:
            return _hold(f"baked, waiting to be sure: {analysis.reason}", baked_s)
        reason = f"still not sure after {baked_s:.0f} s, a person must look: {analysis.reason}"
        return Decision(event=Event.PAUSE, reason=reason, baked_s=baked_s)
    if step.is_last:
        return Decision(event=Event.FINISH, reason=analysis.reason, baked_s=baked_s)
    if step.held_by:
        return _hold(f"passed, but held: {step.held_by}", baked_s)
    return Decision(event=Event.ADVANCE, reason=analysis.reason, baked_s=baked_s)


def _hold(reason: str, baked_s: float) -> Decision:
    return Decision(event=None, reason=reason, baked_s=baked_s)


def weights(share: float, percent: float) -> tuple[float, float]:
    """Give stable's and the canary's weight when the canary gets `percent` of `share`.

    0 and 100 are exact: whoever has nothing gets exactly none.
    """
    canary = share * percent / 100.0
    return (0.0, share) if percent >= 100.0 else (share - canary, canary)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A pool as the start of a rollout looks at it."""

    slug: str
    model: str
    version: str
    weight: float  # of the model's sessions; 0 without a share
    ready: int  # replicas
    gpus: frozenset[tuple[str, int]] = frozenset()  # node and index: a card or a MIG slice


def start_fault(stable: PoolFacts, canary: PoolFacts, *, running: str = "") -> str:
    """Say why a rollout from `stable` to `canary` may not start; "" when it may.

    Args:
        running: the rollout that runs for the model already.
    """
    if stable.slug == canary.slug:
        return f"stable and canary are both pool '{stable.slug}': a rollout needs two"
    if canary.model != stable.model:
        return (
            f"pool '{canary.slug}' serves '{canary.model}', pool '{stable.slug}' serves"
            f" '{stable.model}': a rollout moves sessions of one model"
        )
    return running or _unfit(stable, canary)


def _unfit(stable: PoolFacts, canary: PoolFacts) -> str:
    shared = sorted(stable.gpus & canary.gpus)
    if shared:
        where = ", ".join(f"{node} GPU {index}" for node, index in shared[:3])
        return (
            f"pools '{stable.slug}' and '{canary.slug}' share a card or MIG slice ({where}):"
            " each would slow the other down and the comparison would judge neither"
        )
    if not canary.ready:
        return f"pool '{canary.slug}' has no ready replica"
    if not stable.weight > 0:
        return f"pool '{stable.slug}' has no share of '{stable.model}' to be moved"
    if canary.weight > 0:
        return (
            f"pool '{canary.slug}' has a share of '{canary.model}' already (weight"
            f" {canary.weight:g}): set it to 0 first"
        )
    return ""


def steps_fault(percents: Iterable[float]) -> str:
    """Say what is wrong with a rollout's steps; "" when nothing is."""
    found = list(percents)
    if not found or found[-1] != 100.0:
        return "the last step must be 100 %"
    if any(not 0 < percent <= 100 for percent in found):
        return "every step must be above 0 and at most 100 %"
    if any(b <= a for a, b in pairwise(found)):
        return "each step must be larger than the one before"
    return "" if len(found) <= 20 else "at most 20 steps"


def drift(expected: Mapping[str, float], found: Mapping[str, float]) -> str:
    """Say how a split differs from what a step set; "" when it does not."""
    wrong = [
        f"'{pool}' has {found.get(pool, 0.0):g} instead of {weight:g}"
        for pool, weight in expected.items()
        if abs(found.get(pool, 0.0) - weight) > 1e-9 * max(1.0, weight)
    ]
    return f"the split was changed by somebody else: {', '.join(wrong)}" if wrong else ""
