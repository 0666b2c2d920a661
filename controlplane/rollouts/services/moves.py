"""Moving a rollout on, back, or nowhere: each move is one transaction, won by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain import rollouts
from controlplane.domain.errors import Conflict, Invalid
from controlplane.domain.rollouts import Event, Phase
from controlplane.fleet import services as fleet
from controlplane.rollouts import selectors
from controlplane.rollouts.models import Rollout, RolloutStep

REASON_LENGTH = 1000
OUTCOMES = {Event.ADVANCE: "passed", Event.FINISH: "passed", Event.FAIL: "failed"}
_SETTLED = (Event.FINISH, Event.FAIL, Event.ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move of a rollout: what happens, who makes it, and why."""

    event: Event
    actor: Actor
    reason: str
    outcome: str = ""  # of the step it ends, where that is not the event's own
    baked_s: float | None = None


@transaction.atomic
def move(row: Rollout, made: Move) -> Rollout:
    """Carry out a move from the state in which `row` was read.

    Raises:
        Conflict: the event cannot happen in this phase, or somebody moved it meanwhile.
    """
    phase = rollouts.next_phase(Phase(row.phase), made.event)
    if phase is None:
        raise Conflict(
            f"Rollout {row.pk} is {row.phase}: {made.event} is not possible.", code="wrong_phase"
        )
    before = {"phase": row.phase, **selectors.found_weights(row)}
    _write(row, phase, made)
    if made.event is Event.ADVANCE:
        _next_step(row, made)
    elif made.event in _SETTLED:
        _settle(row, made)
    elif made.event is Event.RESUME:
        _reset(row, made)
    record(
        actor=made.actor,
        verb=f"rollout.{made.event}",
        target=("rollout", str(row.pk)),
        reason=made.reason[:REASON_LENGTH],
        change=(before, {"phase": phase, **selectors.found_weights(row)}),
    )
    row.refresh_from_db()
    return row


def _write(row: Rollout, phase: Phase, made: Move) -> None:
    changes: dict[str, Any] = {"phase": phase, "reason": made.reason[:REASON_LENGTH]}
    if made.event is Event.ADVANCE:
        changes |= {"current": row.current + 1, "baked_s": 0.0}
    elif made.baked_s is not None:
        changes["baked_s"] = made.baked_s
    if made.event in _SETTLED:
        changes["finished_at"] = timezone.now()
    rows = Rollout.objects.filter(pk=row.pk, version=row.version)
    if not rows.update(version=F("version") + 1, **changes):
        raise Conflict(
            f"Rollout {row.pk} moved meanwhile: look again, then decide.", code="stale_version"
        )
    row.refresh_from_db()


def begin_step(row: Rollout, *, actor: Actor, reason: str) -> RolloutStep:
    """Set the weights of the step a rollout is at, and open the step's row."""
    revision = fleet.shift_weights(
        model=row.model,
        weights=selectors.expected_weights(row),
        holder=str(row),
        actor=actor,
        reason=f"{row}: step to {row.percent:g} %. {reason}"[:REASON_LENGTH],
    )
    return RolloutStep.objects.create(
        rollout=row,
        index=row.current,
        percent=row.percent,
        began_at=timezone.now(),
        revision=revision,
    )


def _next_step(row: Rollout, made: Move) -> None:
    _end_step(row, row.current - 1, made)
    begin_step(row, actor=made.actor, reason=made.reason)


def _settle(row: Rollout, made: Move) -> None:
    """Give everything to the winner at once and let go of the weights."""
    _end_step(row, row.current, made)
    fleet.shift_weights(
        model=row.model,
        weights=selectors.expected_weights(row),
        holder="",
        actor=made.actor,
        reason=f"{row}: {made.event}. {made.reason}"[:REASON_LENGTH],
    )


def _reset(row: Rollout, made: Move) -> None:
    """Set a resumed step's weights again if somebody changed them; its clock begins anew."""
    if not rollouts.drift(selectors.expected_weights(row), selectors.found_weights(row)):
        return
    revision = fleet.shift_weights(
        model=row.model,
        weights=selectors.expected_weights(row),
        holder=str(row),
        actor=made.actor,
        reason=f"{row}: resumed, weights set again. {made.reason}"[:REASON_LENGTH],
    )
    Rollout.objects.filter(pk=row.pk).update(baked_s=0.0)
    RolloutStep.objects.filter(rollout=row, index=row.current).update(
        revision=revision, observed_at=None
    )


def _end_step(row: Rollout, index: int, made: Move) -> None:
    RolloutStep.objects.filter(rollout=row, index=index).update(
        ended_at=timezone.now(),
        outcome=made.outcome or OUTCOMES.get(made.event, "aborted"),
        reason=made.reason[:REASON_LENGTH],
    )


def _by_person(
    number: int, event: Event, actor: Actor, reason: str, expected_version: int | None
) -> Rollout:
    row = selectors.rollout(number)
    if not reason.strip():
        raise Invalid("Say why: the reason goes into the audit log.", field="reason")
    if expected_version is not None and row.version != expected_version:
        raise Conflict(
            f"Rollout {number} moved meanwhile: look again, then decide.", code="stale_version"
        )
    outcome = "promoted" if event in (Event.ADVANCE, Event.FINISH) else ""
    return move(row, Move(event=event, actor=actor, reason=reason, outcome=outcome))


def pause_rollout(
    *, number: int, actor: Actor, reason: str, expected_version: int | None = None
) -> Rollout:
    """Hold a rollout where it is; a failing analysis still takes it back."""
    return _by_person(number, Event.PAUSE, actor, reason, expected_version)


def resume_rollout(
    *, number: int, actor: Actor, reason: str, expected_version: int | None = None
) -> Rollout:
    """Let a paused rollout go on by itself."""
    return _by_person(number, Event.RESUME, actor, reason, expected_version)


@transaction.atomic
def promote_rollout(
    *,
    number: int,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    override_budget: bool = False,
) -> Rollout:
    """Go on to the next step without waiting; from the last step: finish.

    Args:
        override_budget: take the step although an error budget is spent; audited.
    """
    row = selectors.rollout(number)
    if row.is_running and row.current + 1 >= len(row.percents):
        return _by_person(number, Event.FINISH, actor, reason, expected_version)
    frozen = selectors.frozen_words(row.stable_pool, row.canary_pool)
    if frozen and row.is_running:
        pass_freeze(str(row.pk), frozen, actor=actor, reason=reason, override=override_budget)
    return _by_person(number, Event.ADVANCE, actor, reason, expected_version)


def pass_freeze(name: str, frozen: str, *, actor: Actor, reason: str, override: bool) -> None:
    """Refuse a step that a spent error budget forbids, or note who overrode that and why."""
    if not override:
        raise Conflict(
            f"The error budget forbids a further step: {frozen.rstrip('.')}. Wait, or"
            " override it with a reason.",
            code="budget_spent",
        )
    record(
        actor=actor,
        verb="rollout.override_budget",
        target=("rollout", name),
        reason=reason[:REASON_LENGTH],
        change=(None, {"overridden": frozen}),
    )


def abort_rollout(
    *, number: int, actor: Actor, reason: str, expected_version: int | None = None
) -> Rollout:
    """Give everything back to stable at once; running streams end where they are."""
    return _by_person(number, Event.ABORT, actor, reason, expected_version)
