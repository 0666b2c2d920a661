"""The scaling loop: one decision a pool at a time, by compare-and-set, stored with its inputs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models import F, Q

from controlplane.audit.services import Actor
from controlplane.domain.amounts import counted
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.replica_placement import Placed, place
from controlplane.domain.replica_states import Event
from controlplane.domain.scaling import Counts, Verdict, count, decide
from controlplane.domain.scaling_inputs import Member, Past
from controlplane.domain.scaling_moves import Moves, moves
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node, Pool, Replica
from controlplane.routing import selectors as routing
from controlplane.scaling import selectors
from controlplane.scaling.models import ScalingDecision, ScalingPolicy
from controlplane.scaling.selectors import Heard

log = structlog.get_logger(__name__)
LOOP: Final = Actor(selectors.ACTOR, "loop")
BUSY_S: Final = 20.0  # a decision that takes longer is another's to take
STARTS_AT_ONCE: Final = 32
KEYLESS: Final = frozenset({"simulated", "triton"})  # programs that know no API key
CANNOT_ACT: Final = "cannot act: its replicas are run by somebody else"


class _Overtaken(Exception):
    """Another worker decides for this pool by now: nothing of ours may stay."""


def decide_all(now: datetime) -> str:
    """Decide for every pool with a policy, and say what was done.

    While publishing is halted no decision could reach the agents: a drain that they do not know of
    would end under their traffic.
    """
    if reason := routing.publication().halted_reason:
        return f"halted: {reason}"
    said = selectors.heard()
    done = [_decide_alone(row, said, now) for row in list(selectors.policies())]
    changed = [d for d in done if d is not None and d.code in ("up", "down", "bounds")]
    return f"{counted(len(done), 'pools')} looked at, {len(changed)} changed"


def _decide_alone(row: ScalingPolicy, said: Heard, now: datetime) -> ScalingDecision | None:
    """Decide for one pool so that whatever goes wrong with it stops no other."""
    try:
        return decide_pool(row, said, now)
    except Exception:
        log.exception("scaling_failed", pool=row.pool.slug)
        return None


def decide_pool(row: ScalingPolicy, said: Heard, now: datetime) -> ScalingDecision | None:
    """Decide for one pool; None if another worker does, or did since `row` was read."""
    if not _claim(row, now):
        return None
    replicas = selectors.replicas_of(row.pool)
    found = selectors.members(replicas, said, now)
    demand = selectors.demand(row.pool.slug, said)
    verdict = decide(
        selectors.policy_input(row),
        found,
        demand,
        Past(scaled_at=row.scaled_at, below_since=row.below_since),
        override=selectors.override_input(selectors.override_of(row.pool, now)),
        now=now,
    )
    try:
        return _carry_out(row, found, verdict, said, now)
    except _Overtaken:
        log.info("scaling_overtaken", pool=row.pool.slug)
        return None


def _claim(row: ScalingPolicy, now: datetime) -> bool:
    """Be the one who decides this time: the row is as it was read, and nobody is at it."""
    free = Q(busy_until=None) | Q(busy_until__lt=now)
    rows = ScalingPolicy.objects.filter(free, pk=row.pk, round=row.round, version=row.version)
    won = rows.update(round=F("round") + 1, busy_until=now + timedelta(seconds=BUSY_S))
    row.round += won
    return bool(won)


@transaction.atomic
def _carry_out(
    row: ScalingPolicy, found: Sequence[Member], verdict: Verdict, said: Heard, now: datetime
) -> ScalingDecision:
    planned = moves(
        found,
        wanted=verdict.wanted,
        spares=row.warm_spares,
        hurried=verdict.code in ("override", "people"),
    )
    counts = count(found)
    if row.executor == Replica.Executor.AGENT:
        outcome, changed = _act(row, planned, verdict, said)
    else:
        outcome, changed = ("" if planned.is_none else CANNOT_ACT), False
    held = ScalingPolicy.objects.filter(pk=row.pk, round=row.round).update(
        busy_until=None,
        below_since=None if changed else verdict.below_since,
        scaled_at=now if changed else row.scaled_at,
    )
    if not held:
        raise _Overtaken
    if row.enabled and row.executor == Replica.Executor.AGENT:
        Pool.objects.filter(pk=row.pool_id).exclude(wanted_replicas=verdict.wanted).update(
            wanted_replicas=verdict.wanted
        )
    return _store(row.pool, verdict, counts, outcome, now)


# -- acting ------------------------------------------------------------------------------------


def _act(row: ScalingPolicy, planned: Moves, verdict: Verdict, said: Heard) -> tuple[str, bool]:
    """Do what is planned; gives it in words, and whether anything was done."""
    why = verdict.reason
    done = [_moved(r, Event.CANCELLED, f"load returned: {why}") for r in planned.cancel_drains]
    done += [_promoted(r, why) for r in planned.promote]
    done += [_drained(row, r, why) for r in planned.drain]
    done += [_moved(r, Event.GIVE_UP, why) for r in planned.give_up]
    wanted = [False] * planned.start + [True] * planned.start_spares
    for is_spare in wanted[:STARTS_AT_ONCE]:
        placed = place(selectors.need(row), selectors.rooms(row.pool, said))
        if placed.node is None:
            done.append(f"no place for another replica: {placed.reason}")
            break
        done.append(_created(row, placed, why, is_spare=is_spare))
    changed = any(not d.startswith(("no place", "left")) for d in done)
    return "; ".join(done), changed


def _created(row: ScalingPolicy, placed: Placed, why: str, *, is_spare: bool) -> str:
    node = Node.objects.get(name=placed.node)
    program = selectors.program_of(row)
    version = row.pool.model_version
    made = fleet.create_run_replica(
        pool=row.pool,
        node=node,
        actor=LOOP,
        reason=f"{why}; on {placed.reason}",
        is_spare=is_spare,
        url=selectors.engine_url(node.executor, placed.port),
        engine="vllm" if program == "simulated" else program,
        served_model=version.model.name,
        credential="" if program in KEYLESS else f"sbe-{secrets.token_urlsafe(24)}",
        gpu_indices=list(placed.gpus),
        launch={
            "program": program,
            "model_source": row.model_source or version.source,
            "memory_ratio": row.memory_ratio,
            "context_tokens": version.context_tokens,
            **selectors.adapter_room(row.pool, program),
            "arguments": {**version.engine_arguments, **row.engine_arguments},
            "loading_limit_s": row.loading_limit_s,
        },
    )
    kind = "spare " if is_spare else ""
    return f"{kind}{made.public_id} on {placed.reason}"


def _drained(row: ScalingPolicy, replica: str, why: str) -> str:
    try:
        fleet.drain_replica(replica_id=replica, actor=LOOP, reason=why, limit_s=row.drain_s)
    except (Conflict, NotFound) as error:
        return f"left {replica}: {error.message}"
    return f"drains {replica} for at most {row.drain_s:g} s"


def _promoted(replica: str, why: str) -> str:
    fleet.promote_spare(replica_id=replica, actor=LOOP, reason=why)
    return _moved(replica, Event.WARMED, f"a warm spare, promoted: {why}")


def _moved(replica: str, event: Event, why: str) -> str:
    try:
        moved = fleet.move_replica(replica_id=replica, event=event, actor=LOOP, reason=why)
    except (Conflict, NotFound) as error:  # somebody moved it first: the next round sees it
        return f"left {replica}: {error.message}"
    return f"{replica} is {moved.state}"


# -- storing -----------------------------------------------------------------------------------


def _store(
    pool: Pool, verdict: Verdict, counts: Counts, outcome: str, now: datetime
) -> ScalingDecision:
    """Keep a decision; one that is the same as the last only moves its end."""
    inputs: dict[str, Any] = {
        "signals": [asdict(s) for s in verdict.signals],
        "replicas": asdict(counts) | {"current": counts.current},
    }
    told = {
        "reason": verdict.reason[:300],
        "limit": verdict.limit[:60],
        "raw": verdict.raw,
        "inputs": inputs,
        "is_alarm": verdict.is_alarm,
    }
    last = ScalingDecision.objects.filter(pool=pool).order_by("-id").first()
    same = (verdict.code, counts.current, verdict.wanted, outcome[:600])
    if last and (last.code, last.before, last.wanted, last.outcome) == same:
        ScalingDecision.objects.filter(pk=last.pk).update(**told, last_at=now, times=F("times") + 1)
        last.refresh_from_db()
        return last
    log.info("scaling_decided", pool=pool.slug, wanted=verdict.wanted, reason=verdict.reason)
    return ScalingDecision.objects.create(
        pool=pool,
        at=now,
        last_at=now,
        code=verdict.code,
        before=counts.current,
        wanted=verdict.wanted,
        outcome=outcome[:600],
        **told,
    )
