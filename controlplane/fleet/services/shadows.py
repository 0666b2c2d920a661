"""Shadows: which pool gets copies of another's requests, how many, and what is kept of them."""

from __future__ import annotations

from typing import TypedDict, Unpack

import msgspec
from django.db import transaction
from django.db.models import QuerySet

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Invalid
from controlplane.fleet import selectors
from controlplane.fleet.models import Pool, Shadow
from controlplane.fleet.services.editing import create, edit, found, plain, refuse_if_moved
from controlplane.wake import waker
from routing_agent import wire

COLUMNS = ("shadow_pool", "ratio", "at_once", "keep")


class ShadowFields(TypedDict, total=False):
    """What may be said of a shadow; what is left out is as `wire.Shadow` has it."""

    ratio: float  # 0 to 1
    at_once: int
    keep: str  # figures, answers, prompts


@transaction.atomic
def set_shadow(
    *,
    pool: str,
    shadow_pool: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **fields: Unpack[ShadowFields],
) -> Shadow:
    """Copy a share of a pool's requests to another pool; agents obey within seconds."""
    owner = found(_pools(), "pool", slug=pool)
    target = found(_pools(), "pool", "shadow_pool", slug=shadow_pool)
    _check(owner, target, fields)
    row = Shadow.objects.filter(pool=owner).first()
    before = None if row is None else plain(row, COLUMNS)
    if row is None:
        row = Shadow(pool=owner, shadow_pool=target, **fields)
        create(row, f"Pool {pool!r} was just given a shadow.")
    else:
        changes = {"shadow_pool": target, **fields}
        for name, value in changes.items():
            setattr(row, name, value)
        edit(row, changes, expected_version, "")
    record(
        actor=actor,
        verb="pool.set_shadow",
        target=("pool", pool),
        reason=reason,
        change=(before, plain(row, COLUMNS)),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return row


@transaction.atomic
def remove_shadow(
    *, pool: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Copy nothing more."""
    row = found(Shadow.objects.select_related("pool", "shadow_pool"), "shadow of", pool__slug=pool)
    refuse_if_moved(row, expected_version)
    before = plain(row, COLUMNS)
    row.delete()
    record(
        actor=actor,
        verb="pool.remove_shadow",
        target=("pool", pool),
        reason=reason,
        change=(before, None),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))


def _pools() -> QuerySet[Pool]:
    return Pool.objects.select_related("model_version__model")


def _check(owner: Pool, target: Pool, fields: ShadowFields) -> None:
    if owner.pk == target.pk:
        raise Invalid("A pool cannot be its own shadow.", field="shadow_pool")
    serves, copies = target.model_version.model.name, owner.model_version.model.name
    if serves != copies:
        raise Invalid(
            f"Pool {target.slug!r} serves {serves!r}, not {copies!r}: its answers could not be"
            " compared.",
            field="shadow_pool",
        )
    shared = sorted(selectors.cards(owner) & selectors.cards(target))
    if shared:
        node, index = shared[0]
        raise Invalid(
            f"Both pools use GPU {index} of {node}: copies would slow the real requests down.",
            field="shadow_pool",
        )
    try:
        msgspec.convert({"pool": target.slug, **fields}, wire.Shadow)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`'")
        raise Invalid(str(error), field=name if name in fields else None) from error
