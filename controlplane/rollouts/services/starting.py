"""Starting a rollout, or one back to the version before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain import rollouts
from controlplane.domain.errors import Conflict, Invalid
from controlplane.domain.rollouts import Phase
from controlplane.locking import check
from controlplane.rollouts import selectors
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.services.moves import begin_step, pass_freeze


class Rules(TypedDict, total=False):
    """How a rollout goes; what is left out is as `domain.rollouts` has it."""

    percents: Sequence[float]  # of stable's share, one a step; the last is 100
    bake_s: float
    min_requests: int
    regression_limit: float  # 0.1 = 10 %
    override_budget: bool  # start although an error budget is spent; audited


@transaction.atomic
def start_rollout(
    *, stable_pool: str, canary_pool: str, actor: Actor, reason: str, **rules: Unpack[Rules]
) -> Rollout:
    """Begin to move stable's share to the canary, with the first step at once.

    Raises:
        Conflict: `not_startable`, with the reason in words.
    """
    percents = [float(percent) for percent in rules.pop("percents", rollouts.DEFAULT_STEPS)]
    is_overridden = rules.pop("override_budget", False)
    _check(percents, rules)
    stable = selectors.pool_facts(stable_pool, "stable_pool")
    canary = selectors.pool_facts(canary_pool, "canary_pool")
    fault = rollouts.start_fault(stable, canary, running=selectors.running_words(stable.model))
    if fault:
        raise Conflict(f"This rollout cannot start: {fault}.", code="not_startable")
    frozen = selectors.frozen_words(stable.slug, canary.slug)
    now = timezone.now()
    row = Rollout(
        model=stable.model,
        stable_pool=stable.slug,
        canary_pool=canary.slug,
        stable_version=stable.version,
        canary_version=canary.version,
        share=stable.weight,
        percents=percents,
        phase=Phase.PROGRESSING,
        reason=reason,
        started_at=now,
        started_by=actor.name,
        evaluated_at=now,
        **rules,
    )
    check(row)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            f"Another rollout for {stable.model!r} was just started.", code="not_startable"
        ) from error
    if frozen:
        pass_freeze(str(row.pk), frozen, actor=actor, reason=reason, override=is_overridden)
    begin_step(row, actor=actor, reason=reason)
    record(
        actor=actor,
        verb="rollout.start",
        target=("rollout", str(row.pk)),
        reason=reason,
        change=(None, _plain(row)),
    )
    return row


def roll_back(
    *, number: int, actor: Actor, reason: str, expected_version: int | None = None
) -> Rollout:
    """Start a rollout of the version before: from the canary back to stable, in one step."""
    row = selectors.rollout(number)
    if expected_version is not None and row.version != expected_version:
        raise Conflict(f"Rollout {number} moved meanwhile: look again.", code="stale_version")
    if row.phase != Phase.HEALTHY:
        raise Conflict(
            f"Rollout {number} is {row.phase}: only a finished one can be rolled back;"
            " a running one is aborted.",
            code="wrong_phase",
        )
    return start_rollout(
        stable_pool=row.canary_pool,
        canary_pool=row.stable_pool,
        actor=actor,
        reason=f"back from {row}: {reason}",
        percents=[100.0],
        override_budget=True,  # going back is what a spent budget asks for
        bake_s=row.bake_s,
        min_requests=row.min_requests,
        regression_limit=row.regression_limit,
    )


def _check(percents: list[float], rules: Rules) -> None:
    fault = rollouts.steps_fault(percents)
    if fault:
        raise Invalid(f"percents: {fault}.", field="percents")
    if not 0 <= rules.get("bake_s", rollouts.BAKE_S) <= 7 * 86400:
        raise Invalid("bake_s is between 0 and 604800 (a week).", field="bake_s")
    if not 1 <= rules.get("min_requests", rollouts.MIN_REQUESTS) <= 10_000_000:
        raise Invalid("min_requests is at least 1.", field="min_requests")
    if not 0 <= rules.get("regression_limit", rollouts.REGRESSION_LIMIT) <= 10:
        raise Invalid("regression_limit is a share between 0 and 10.", field="regression_limit")


def _plain(row: Rollout) -> dict[str, object]:
    return {
        "model": row.model,
        "from": f"{row.stable_pool} ({row.stable_version})",
        "to": f"{row.canary_pool} ({row.canary_version})",
        "share": row.share,
        "percents": row.percents,
        "bake_s": row.bake_s,
        "min_requests": row.min_requests,
        "regression_limit": row.regression_limit,
    }
