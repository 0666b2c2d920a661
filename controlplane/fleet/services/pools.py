"""Pools, their settings, and how a model's sessions are split over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, Unpack

from django.db import transaction

from controlplane.audit.services import Actor, record
from controlplane.catalog.models import Model, ModelVersion
from controlplane.domain import pool_settings
from controlplane.domain.errors import Conflict, Invalid
from controlplane.domain.replica_states import State
from controlplane.fleet.models import Pool, TrafficSplit
from controlplane.fleet.services.editing import (
    create,
    edit,
    found,
    plain,
    refuse_if_moved,
)
from controlplane.fleet.services.splits import refuse_held, refuse_held_pool
from controlplane.wake import waker

FULL_WEIGHT = 100.0


class PoolFields(TypedDict, total=False):
    """What may be said of a pool, at creation and later."""

    description: str
    traffic_class: str
    wanted_replicas: int
    overload_policy: str  # queue, fallback, reject: required at creation
    fallback_pool: str | None  # slug
    settings: dict[str, Any]  # overrides of wire.PoolSettings, replaced as a whole
    owner: str
    backup_owner: str


class PoolIdentity(PoolFields, total=False):
    """What is said of a pool at its creation only."""

    model: str  # the model's name
    version: str  # the version's name within its model


@transaction.atomic
def create_pool(*, slug: str, actor: Actor, reason: str, **fields: Unpack[PoolIdentity]) -> Pool:
    """Create a pool for one model version.

    A model's first pool gets all its sessions; a further one gets none until `set_splits`.
    """
    version = _version(fields.get("model", ""), fields.get("version", ""))
    columns = _columns({k: v for k, v in fields.items() if k not in {"model", "version"}})
    pool = Pool(slug=slug, model_version=version, **columns)
    _check_overload(pool)
    create(pool, f"There is already a pool {slug!r}.", "slug")
    if not TrafficSplit.objects.filter(model=version.model).exists():
        TrafficSplit.objects.create(model=version.model, pool=pool, weight=FULL_WEIGHT)
    after = {**plain(pool, columns), "model": version.model.name, "version": version.name}
    record(
        actor=actor,
        verb="pool.create",
        target=("pool", slug),
        reason=reason,
        change=(None, after),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return pool


@transaction.atomic
def update_pool(
    *,
    slug: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[PoolFields],
) -> Pool:
    """Change a pool's policies; agents obey them with the next table."""
    pool = found(Pool.objects.select_related("fallback_pool"), "pool", slug=slug)
    columns = _columns(changes)
    before = plain(pool, columns)
    for name, value in columns.items():
        setattr(pool, name, value)
    _check_overload(pool)
    edit(pool, columns, expected_version, f"There is already a pool {slug!r}.")
    record(
        actor=actor,
        verb="pool.update",
        target=("pool", slug),
        reason=reason,
        change=(before, plain(pool, columns)),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return pool


@transaction.atomic
def delete_pool(
    *, slug: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a pool without live replicas, with its splits and its stopped replicas."""
    pool = found(Pool.objects.all(), "pool", slug=slug)
    refuse_if_moved(pool, expected_version)
    refuse_held_pool(pool)
    live = pool.replicas.exclude(state__in=[State.STOPPED, State.FAILED, State.PENDING]).count()
    if live:
        raise Conflict(
            f"Pool {slug!r} still has {live} live replicas: drain them first.", code="in_use"
        )
    leaning = list(pool.fallback_of.values_list("slug", flat=True))
    if leaning:
        raise Conflict(
            f"Pool {slug!r} is the fallback of {', '.join(leaning)}: change those first.",
            code="in_use",
        )
    shadowed = list(pool.shadow_of.values_list("pool__slug", flat=True))
    if shadowed:
        raise Conflict(
            f"Pool {slug!r} is the shadow of {', '.join(shadowed)}: remove that first.",
            code="in_use",
        )
    pool.replicas.all().delete()
    pool.delete()
    record(
        actor=actor, verb="pool.delete", target=("pool", slug), reason=reason, touches_fleet=True
    )
    transaction.on_commit(waker("routing.publish"))


@transaction.atomic
def set_splits(
    *,
    model: str,
    weights: Mapping[str, float],
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
) -> list[TrafficSplit]:
    """Say how a model's sessions are split over pools, by slug; pools left out get nothing.

    Args:
        expected_version: of the model.
    """
    row = found(Model.objects.all(), "model", name=model)
    pools = _pools_of(row, weights)
    _check_weights(weights)
    refuse_held(row, weights)
    before = dict(row.splits.values_list("pool__slug", "weight"))
    edit(row, {}, expected_version, "")  # the model's version guards its splits
    row.splits.exclude(pool__slug__in=weights).delete()
    TrafficSplit.objects.bulk_create(
        [TrafficSplit(model=row, pool=p, weight=float(weights[p.slug])) for p in pools],
        update_conflicts=True,
        unique_fields=["model", "pool"],
        update_fields=["weight"],
    )
    record(
        actor=actor,
        verb="model.set_splits",
        target=("model", model),
        reason=reason,
        change=(before, dict(weights)),
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
    return list(row.splits.select_related("pool"))


def _version(model: str, version: str) -> ModelVersion:
    found(Model.objects.all(), "model", "model", name=model)
    row = found(
        ModelVersion.objects.filter(model__name=model).select_related("model"),
        f"version of {model!r} named",
        "version",
        name=version,
    )
    if row.retired_at is not None:
        raise Conflict(f"Version {version!r} of {model!r} is retired; choose another.")
    return row


def _columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn fields as callers write them into columns: checked settings, a pool for its slug."""
    columns = dict(fields)
    if "settings" in columns:
        if not isinstance(columns["settings"], dict):
            raise Invalid("settings must be a mapping of names to values.", field="settings")
        pool_settings.resolved(columns["settings"])
        columns["settings"] = pool_settings.overrides_of(columns["settings"])
    if columns.get("fallback_pool"):
        columns["fallback_pool"] = found(
            Pool.objects.all(), "pool", "fallback_pool", slug=columns["fallback_pool"]
        )
    elif "fallback_pool" in columns:
        columns["fallback_pool"] = None
    return columns


def _check_overload(pool: Pool) -> None:
    if pool.overload_policy not in Pool.Overload.values:
        raise Invalid(
            f"overload_policy must be one of {', '.join(Pool.Overload.values)}:"
            " what happens when the pool is full should be nobody's surprise.",
            field="overload_policy",
        )
    if pool.overload_policy == Pool.Overload.FALLBACK and pool.fallback_pool is None:
        raise Invalid("Overload policy 'fallback' needs a fallback_pool.", field="fallback_pool")
    seen, other = {pool.slug}, pool.fallback_pool
    while other is not None:
        if other.slug in seen:
            raise Invalid(
                f"Falling back to {other.slug!r} would lead back to it in a circle.",
                field="fallback_pool",
            )
        seen.add(other.slug)
        other = other.fallback_pool


def _pools_of(model: Model, slugs: Iterable[str]) -> list[Pool]:
    """Give the pools that are named, all of which must serve `model`."""
    rows = Pool.objects.select_related("model_version__model").filter(slug__in=list(slugs))
    for slug in set(slugs) - {pool.slug for pool in rows}:
        raise Invalid(f"There is no pool {slug!r}.", code="unknown_reference", field="weights")
    for pool in rows:
        serves = pool.model_version.model.name
        if serves != model.name:
            raise Invalid(
                f"Pool {pool.slug!r} serves {serves!r}, not {model.name!r}.", field="weights"
            )
    return list(rows)


def _check_weights(weights: Mapping[str, float]) -> None:
    for slug, weight in weights.items():
        sound = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not sound or not math.isfinite(weight) or weight < 0:
            raise Invalid(
                f"The weight of {slug!r} must be a number of at least 0, not {weight!r}.",
                field="weights",
            )
    if weights and not any(weights.values()):
        raise Invalid("At least one pool needs a weight above 0.", field="weights")
