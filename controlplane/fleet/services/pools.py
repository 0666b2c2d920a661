"""Pools, their settings, and how a model's sessions are split over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from controlplane.audit.services import Actor
from controlplane.fleet.models import Pool, TrafficSplit


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


def create_pool(*, slug: str, actor: Actor, reason: str, **fields: Unpack[PoolIdentity]) -> Pool:
    """Create a pool for one model version; it gets no share of sessions until `set_splits`."""
    raise NotImplementedError


def update_pool(
    *,
    slug: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[PoolFields],
) -> Pool:
    """Change a pool's policies; agents obey them with the next table."""
    raise NotImplementedError


def delete_pool(
    *, slug: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a pool without live replicas, with its splits and its stopped replicas."""
    raise NotImplementedError


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
    raise NotImplementedError
