"""What people say of scaling: policies, overrides, and both undone."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.db import transaction
from django.utils import timezone

from controlplane import locking
from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.fleet.models import Pool, Replica
from controlplane.scaling.models import Override, ScalingPolicy
from controlplane.scaling.selectors import override_of
from controlplane.wake import waker

RUN = "scaling.run"


class PolicyFields(TypedDict, total=False):
    """What may be said of how a pool scales."""

    enabled: bool
    executor: str  # agent, static
    min_replicas: int
    max_replicas: int
    queue_wait_limit_s: float
    kv_usage_limit: float
    queue_length_limit: float
    utilisation_low: float
    utilisation_high: float
    cooldown_s: float
    tolerance_ratio: float
    step_factor: float
    max_step: int | None
    scale_down_after_s: float
    warm_spares: int
    drain_s: float
    start_wait_s: float
    loading_limit_s: float
    program: str
    model_source: str
    gpus_per_replica: int
    memory_ratio: float
    engine_arguments: dict[str, Any]


FIELDS = tuple(PolicyFields.__annotations__)


@transaction.atomic
def set_policy(
    *,
    pool: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[PolicyFields],
) -> ScalingPolicy:
    """Say how a pool scales, for the first time or anew; version 0 is that of a pool without."""
    owner = _pool(pool)
    row = ScalingPolicy.objects.select_related("pool").filter(pool=owner).first()
    before = facts(row) if row is not None else None
    called = f"The scaling policy of pool {pool!r}"
    if row is None:
        if expected_version not in (None, 0):
            raise locking.stale(called)
        row = ScalingPolicy(pool=owner, **changes)
        _check(row)
        row.save(force_insert=True)
    else:
        for name, value in changes.items():
            setattr(row, name, value)
        _check(row)
        locking.change(row, changes, expected_version=expected_version, called=called)
    _tell_agents(owner, row)
    _record(actor, "scaling.set_policy", pool, reason, (before, facts(row)))
    return row


@transaction.atomic
def delete_policy(
    *, pool: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Stop scaling a pool; its replicas stay as they are."""
    owner = _pool(pool)
    row = ScalingPolicy.objects.filter(pool=owner).first()
    if row is None:
        raise NotFound(f"Pool {pool!r} has no scaling policy.")
    before = facts(row)
    locking.delete(row, expected_version=expected_version, called=f"The policy of {pool!r}")
    _tell_agents(owner, None)
    _record(actor, "scaling.delete_policy", pool, reason, (before, None))


@transaction.atomic
def set_override(
    *, pool: str, count: int, expires_at: datetime, actor: Actor, reason: str
) -> Override:
    """Want a number of replicas until a moment, whatever the signals say."""
    owner = _pool(pool)
    row = ScalingPolicy.objects.filter(pool=owner).first()
    if row is None:
        raise Conflict(f"Pool {pool!r} has no scaling policy to override.", code="no_policy")
    now = timezone.now()
    if not row.min_replicas <= count <= row.max_replicas:
        bounds = f"{row.min_replicas} to {row.max_replicas}"
        raise Invalid(f"count must be within the policy's bounds, {bounds}.", field="count")
    if expires_at <= now:
        raise Invalid("expires_at is past: an override holds until it.", field="expires_at")
    if not reason.strip():
        raise Invalid("Say why: the next one who looks has to know.", field="reason")
    before = override_of(owner, now)
    Override.objects.filter(pool=owner, ended_at=None).update(ended_at=now)
    made = Override.objects.create(
        pool=owner, count=count, reason=reason[:300], created_by=actor.name, expires_at=expires_at
    )
    change = ({"count": before.count if before else None}, {"count": count,
              "expires_at": expires_at.isoformat()})  # fmt: skip
    _record(actor, "scaling.override", pool, reason, change)
    return made


@transaction.atomic
def end_override(*, pool: str, actor: Actor, reason: str) -> None:
    """Let the signals decide again, before the override's time is over."""
    owner = _pool(pool)
    row = override_of(owner, timezone.now())
    if row is None:
        raise Conflict(f"No override of pool {pool!r} holds now.", code="state_conflict")
    Override.objects.filter(pk=row.pk, ended_at=None).update(ended_at=timezone.now())
    _record(actor, "scaling.end_override", pool, reason, ({"count": row.count}, {"count": None}))


def facts(row: ScalingPolicy) -> dict[str, Any]:
    """Give what people may say of a policy, as JSON values."""
    return {name: getattr(row, name) for name in FIELDS}


def _pool(slug: str) -> Pool:
    row = Pool.objects.filter(slug=slug).first()
    if row is None:
        raise NotFound(f"There is no pool {slug!r}.")
    return row


def _check(row: ScalingPolicy) -> None:
    """Hold what belongs together against each other; each column alone is checked after."""
    if row.min_replicas > row.max_replicas:
        raise Invalid("min_replicas is above max_replicas.", field="min_replicas")
    if row.utilisation_low >= row.utilisation_high:
        raise Invalid("utilisation_low must be below utilisation_high.", field="utilisation_low")
    gpus = row.gpus_per_replica
    if gpus and not math.log2(gpus).is_integer():
        raise Invalid(
            f"gpus_per_replica {gpus}: tensor parallel sizes are powers of two.",
            field="gpus_per_replica",
        )
    arguments = row.engine_arguments
    if not isinstance(arguments, dict) or not all(
        isinstance(v, (str, int, float, bool)) for v in arguments.values()
    ):
        raise Invalid(
            'engine_arguments must be an object of option names and values, {"--seed": 1}.',
            field="engine_arguments",
        )
    locking.check(row)


def _tell_agents(pool: Pool, row: ScalingPolicy | None) -> None:
    """Let agents know whether requests may wait for a replica of this pool to be started."""
    grows = row is not None and row.executor == Replica.Executor.AGENT
    Pool.objects.filter(pk=pool.pk).update(
        start_wait_s=row.start_wait_s if row is not None and grows else 0.0,
        may_grow_to=row.max_replicas if row is not None and grows else 0,
    )


def _record(actor: Actor, verb: str, pool: str, reason: str, change: tuple[Any, Any]) -> None:
    record(
        actor=actor, verb=verb, target=("pool", pool), reason=reason, change=change,
        touches_fleet=True,
    )  # fmt: skip
    transaction.on_commit(waker("routing.publish"))
    transaction.on_commit(waker(RUN))
