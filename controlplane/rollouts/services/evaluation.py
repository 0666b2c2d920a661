"""The loop over rollouts: look at each, keep what was seen, move it on. Safe twice and late."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import structlog
from django.conf import settings
from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.domain import rollouts
from controlplane.domain.analysis import Metric
from controlplane.domain.errors import ProblemError
from controlplane.domain.rollouts import Decision, Phase, Step
from controlplane.rollouts import selectors
from controlplane.rollouts.models import AnalysisRun, Rollout, RolloutStep
from controlplane.rollouts.selectors import Judged
from controlplane.rollouts.services.moves import REASON_LENGTH, Move, move

log = structlog.get_logger(__name__)
LOOP = Actor("rollouts", "loop")
# Two schedulers ask twice as often: whoever comes sooner than this after the last look leaves it.
SOONEST = 0.5


def evaluate_all() -> str:
    """Look at every running rollout; one that cannot be looked at holds up no other."""
    said = []
    for row in selectors.running():
        try:
            said.append(f"{row}: {evaluate(row, timezone.now())}")
        except ProblemError as problem:  # moved meanwhile, or its pool is gone
            log.warning("rollout_not_evaluated", rollout=row.pk, why=problem.message)
            said.append(f"{row}: {problem.message}")
    return "; ".join(said) or "no rollout runs"


def evaluate(row: Rollout, now: datetime) -> str:
    """Judge one rollout and carry out what follows; say what was done."""
    elapsed = now - row.evaluated_at
    if elapsed < timedelta(seconds=SOONEST * settings.ROLLOUT_INTERVAL_S):
        return "looked at just now"
    if not _take_turn(row, now):
        return "another worker looks at it"
    step = selectors.current_step(row)
    _note_observed(step, now)
    judged = selectors.judge(row, step, now)
    keep(step, judged, now)
    decision = rollouts.decide(_view(row, step), judged.analysis, elapsed_s=elapsed.total_seconds())
    return _carry_out(row, decision)


def _take_turn(row: Rollout, now: datetime) -> bool:
    """Claim this look: of two workers one finds the time of the last look changed."""
    rows = Rollout.objects.filter(pk=row.pk, evaluated_at=row.evaluated_at)
    return bool(rows.update(evaluated_at=now))


def _note_observed(step: RolloutStep, now: datetime) -> None:
    if step.observed_at is None and selectors.is_observed(step.revision):
        step.observed_at = now
        RolloutStep.objects.filter(pk=step.pk, revision=step.revision).update(observed_at=now)


def _view(row: Rollout, step: RolloutStep) -> Step:
    expected, found = selectors.expected_weights(row), selectors.found_weights(row)
    return Step(
        phase=Phase(row.phase),
        index=row.current,
        percents=tuple(row.percents),
        bake_s=row.bake_s,
        baked_s=row.baked_s,
        is_observed=step.observed_at is not None,
        held_by=selectors.frozen_words(row.stable_pool, row.canary_pool),
        drifted=rollouts.drift(expected, found),
    )


def _carry_out(row: Rollout, decision: Decision) -> str:
    if decision.event is None:
        changes: dict[str, object] = {"baked_s": decision.baked_s}
        if row.phase == Phase.PROGRESSING:
            changes["reason"] = decision.reason[:REASON_LENGTH]
        Rollout.objects.filter(pk=row.pk, version=row.version).update(**changes)
        return decision.reason
    made = Move(event=decision.event, actor=LOOP, reason=decision.reason, baked_s=decision.baked_s)
    move(row, made)
    log.info("rollout_moved", rollout=row.pk, on=decision.event, reason=decision.reason)
    return f"{decision.event}: {decision.reason}"


def keep(step: RolloutStep, judged: Judged, now: datetime) -> None:
    """Keep a look; one more of the same verdict adds to the last one's row."""
    seen = judged.analysis
    fields = {
        "at": now,
        "has_data": seen.has_data,
        "reason": seen.reason[:1000],
        "source": judged.source[:300],
        "canary_requests": seen.canary_requests,
        "stable_requests": seen.stable_requests,
        "metrics": [_plain(metric) for metric in seen.metrics],
    }
    last = selectors.newest_analysis(step)
    if last is not None and (last.verdict, last.has_data) == (seen.verdict, seen.has_data):
        AnalysisRun.objects.filter(pk=last.pk).update(looks=last.looks + 1, **fields)
    else:
        AnalysisRun.objects.create(step=step, first_at=now, verdict=seen.verdict, **fields)


def _plain(metric: Metric) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(metric)
    return plain
