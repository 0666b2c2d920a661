"""Weights that a rollout moves: held by it, so that nobody else moves them meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from controlplane.audit.services import Actor, record
from controlplane.catalog.models import Model
from controlplane.domain.errors import Conflict
from controlplane.fleet.models import Pool, TrafficSplit
from controlplane.fleet.services.editing import edit, found
from controlplane.wake import waker


def refuse_held(model: Model, weights: Mapping[str, float]) -> None:
    """Raise Conflict when `weights` would change a weight that a rollout holds."""
    for split in model.splits.exclude(held_by="").select_related("pool"):
        if float(weights.get(split.pool.slug, -1.0)) != split.weight:
            raise Conflict(
                f"The weight of pool {split.pool.slug!r} is moved by {split.held_by}: promote or"
                " abort that, or wait for its end. Weights of other pools may be changed.",
                code="held",
                field="weights",
            )


def refuse_held_pool(pool: Pool) -> None:
    """Raise Conflict when a rollout holds a pool's weight: the pool must stay."""
    held = pool.splits.exclude(held_by="").first()
    if held is not None:
        raise Conflict(
            f"Pool {pool.slug!r} is part of {held.held_by}: finish or abort that first.",
            code="in_use",
        )


@transaction.atomic
def shift_weights(
    *, model: str, weights: Mapping[str, float], holder: str, actor: Actor, reason: str
) -> int:
    """Set the weights of some of a model's pools and hold them; give the fleet revision of it.

    Args:
        weights: by slug; other pools keep theirs.
        holder: what moves them, in words; "" lets go of them.
    """
    row = found(Model.objects.all(), "model", name=model)
    pools = {pool.slug: pool for pool in Pool.objects.filter(slug__in=list(weights))}
    before = dict(row.splits.filter(pool__slug__in=weights).values_list("pool__slug", "weight"))
    edit(row, {}, None, "")  # a change of the split made from an older one is refused
    TrafficSplit.objects.bulk_create(
        [
            TrafficSplit(model=row, pool=pools[slug], weight=weight, held_by=holder)
            for slug, weight in weights.items()
        ],
        update_conflicts=True,
        unique_fields=["model", "pool"],
        update_fields=["weight", "held_by"],
    )
    event = record(
        actor=actor,
        verb="model.shift_weights",
        target=("model", model),
        reason=reason,
        change=(before, dict(weights)),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return event.fleet_revision or 0
