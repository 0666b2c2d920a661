"""Reads of rollouts: what runs, what a start would meet, what the figures say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, QuerySet

from controlplane.domain import analysis, rollouts
from controlplane.domain.analysis import Analysis
from controlplane.domain.errors import Invalid, NotFound
from controlplane.domain.replica_states import State
from controlplane.domain.rollouts import Phase, PoolFacts
from controlplane.domain.shadow_pairs import OUTCOMES
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Pool, Replica, TrafficSplit
from controlplane.reliability.selectors import budget_freeze
from controlplane.rollouts.measuring import Measured, measure, measure_between
from controlplane.rollouts.models import AnalysisRun, Rollout, RolloutStep, ShadowPair
from controlplane.routing import selectors as routing
from controlplane.telemetry.snapshots import NoData

# How long before a rollout stable's figures are taken from: minutes, at most what is kept fine.
BEFORE_AT_LEAST_S = 300.0
BEFORE_AT_MOST_S = 1800.0
# Figures come in steps of 5 s, by reports every 2 s.
YOUNG_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An analysis and where its figures are from."""

    analysis: Analysis
    source: str = ""


def all_rollouts() -> QuerySet[Rollout]:
    """Give all rollouts, the newest first, with their steps."""
    return Rollout.objects.prefetch_related("steps")


def rollout(number: int) -> Rollout:
    """Give one rollout, or raise NotFound."""
    found = all_rollouts().filter(pk=number).first()
    if found is None:
        raise NotFound(f"There is no rollout {number}.")
    return found


def running() -> QuerySet[Rollout]:
    """Give the rollouts that may still move weights."""
    return Rollout.objects.filter(phase__in=rollouts.RUNNING)


def needing_a_person(now: datetime) -> QuerySet[Rollout]:
    """Give paused rollouts, and those that the loop took back in the last day."""
    taken_back = Q(phase=Phase.DEGRADED, finished_at__gte=now - timedelta(days=1))
    by_loop = Q(steps__outcome="failed")
    return Rollout.objects.filter(Q(phase=Phase.PAUSED) | (taken_back & by_loop)).distinct()


def running_words(model: str) -> str:
    """Say which rollout runs for a model; "" when none does."""
    found = running().filter(model=model).first()
    if found is None:
        return ""
    return (
        f"{found} from '{found.stable_pool}' to '{found.canary_pool}' runs for '{model}'"
        f" already ({found.phase}): a model has one rollout at a time"
    )


def frozen_words(*pools: str) -> str:
    """Say whose spent error budget forbids a further step; "" when none does."""
    told = (budget_freeze(pool) for pool in pools)
    return next((reason for reason in told if reason), "")


def current_step(row: Rollout) -> RolloutStep:
    """Give the step a rollout is at."""
    return RolloutStep.objects.get(rollout=row, index=row.current)


def newest_analysis(step: RolloutStep) -> AnalysisRun | None:
    """Give the newest verdict on a step."""
    return AnalysisRun.objects.filter(step=step).first()


def pool_facts(slug: str, field: str) -> PoolFacts:
    """Give what the start of a rollout looks at; `field` names the input that named the pool."""
    pool = Pool.objects.select_related("model_version__model").filter(slug=slug).first()
    if pool is None:
        raise Invalid(f"There is no pool {slug!r}.", code="unknown_reference", field=field)
    split = TrafficSplit.objects.filter(pool=pool, model=pool.model_version.model).first()
    return PoolFacts(
        slug=slug,
        model=pool.model_version.model.name,
        version=pool.model_version.name,
        weight=split.weight if split else 0.0,
        ready=Replica.objects.filter(pool=pool, state=State.READY).count(),
        gpus=fleet.cards(pool),
    )


def expected_weights(row: Rollout) -> dict[str, float]:
    """Give the weights of a rollout's two pools at its current step."""
    stable, canary = rollouts.weights(row.share, row.percent)
    return {row.stable_pool: stable, row.canary_pool: canary}


def found_weights(row: Rollout) -> Mapping[str, float]:
    """Give the weights that its pools really have."""
    splits = TrafficSplit.objects.filter(
        model__name=row.model, pool__slug__in=[row.stable_pool, row.canary_pool]
    )
    return dict(splits.values_list("pool__slug", "weight"))


def is_observed(revision: int) -> bool:
    """Say whether every agent that we hear runs a table that covers `revision`."""
    seen = routing.observed(revision)
    late = set(seen.agents_behind) - set(seen.silent)
    return not late and seen.m > len(seen.silent)


def judge(row: Rollout, step: RolloutStep, now: datetime) -> Judged:
    """Compare what both versions did since the step was obeyed."""
    since = step.observed_at or step.began_at
    canary = measure(row.canary_pool, since.timestamp(), now.timestamp())
    if isinstance(canary, NoData):
        is_young = (now - since).total_seconds() < YOUNG_S
        why = "the figures of this step only begin to come" if is_young else canary.reason
        return Judged(analysis=analysis.without_data(why))
    stable = _baseline(row, step, now)
    if isinstance(stable, NoData):
        return Judged(analysis=analysis.without_data(stable.reason))
    found = analysis.analyse(
        canary.figures,
        stable.figures,
        limit=row.regression_limit,
        min_requests=row.min_requests,
    )
    sources = {f"canary: {canary.source}", f"stable: {stable.source}"}
    return Judged(analysis=found, source=", ".join(sorted(sources)))


def pairs() -> QuerySet[ShadowPair]:
    """Give compared answers, the newest first."""
    return ShadowPair.objects.all()


def pair(uid: str) -> ShadowPair:
    """Give one pair, or raise NotFound."""
    found = ShadowPair.objects.filter(uid=uid).first()
    if found is None:
        raise NotFound(f"There is no shadow pair {uid!r}: it never was, or retention removed it.")
    return found


def pair_counts(found: QuerySet[ShadowPair]) -> dict[str, int]:
    """Count pairs by outcome and by review."""
    names: dict[str, Q] = {outcome: Q(outcome=outcome) for outcome in OUTCOMES}
    names |= {review: Q(review=review) for review in ShadowPair.Review.values}
    counted = found.order_by().aggregate(
        all=Count("pk"), **{name: Count("pk", filter=which) for name, which in names.items()}
    )
    return {name: int(n) for name, n in counted.items()}


def _baseline(row: Rollout, step: RolloutStep, now: datetime) -> Measured | NoData:
    """Give stable's figures: of the same time, or of one in which it carried the same load.

    With everything on the canary stable has no traffic. It carried all of its share before the
    rollout began; where that was too little to tell, its figures of the step before stand in.
    """
    since = step.observed_at or step.began_at
    if step.percent < 100.0:
        return measure(row.stable_pool, since.timestamp(), now.timestamp())
    start_s = row.started_at.timestamp()
    begin_s = start_s - min(max(row.bake_s, BEFORE_AT_LEAST_S), BEFORE_AT_MOST_S)
    alone = measure_between(row.stable_pool, begin_s, start_s, now.timestamp())
    if not isinstance(alone, NoData) and alone.figures.requests >= row.min_requests:
        return Measured(figures=alone.figures, source=f"{alone.source}, before the rollout")
    before = RolloutStep.objects.filter(rollout=row, index=step.index - 1).first()
    if before is None:
        words = "too few requests" if isinstance(alone, Measured) else alone.reason
        return NoData(f"stable before the rollout: {words}")
    begin, end = before.observed_at or before.began_at, before.ended_at or step.began_at
    found = measure_between(row.stable_pool, begin.timestamp(), end.timestamp(), now.timestamp())
    if isinstance(found, NoData):
        return NoData(f"stable in the step before: {found.reason}")
    return Measured(figures=found.figures, source=f"{found.source}, in the step before")
