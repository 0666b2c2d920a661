"""Reads of the fleet, each with a constant number of queries. Live figures come from telemetry."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.fleet.models import Agent, Node, Pool, Replica


def pools_overview() -> QuerySet[Pool]:
    """Give all pools with their version and model, and replicas counted by state.

    Adds `ready_count`, `ejected_count`, `draining_count`, `starting_count`, `failed_count`.
    """
    raise NotImplementedError


def pool(slug: str) -> Pool:
    """Give one pool with the same additions, or raise NotFound."""
    raise NotImplementedError


def replicas(*, pool: str | None = None) -> QuerySet[Replica]:
    """Give replicas with pool, model version and node."""
    raise NotImplementedError


def replica(replica_id: str) -> Replica:
    """Give one replica by public id, or raise NotFound."""
    raise NotImplementedError


def nodes() -> QuerySet[Node]:
    """Give nodes with their agents and `replica_count`."""
    raise NotImplementedError


def agents() -> QuerySet[Agent]:
    """Give registered agents with their nodes."""
    raise NotImplementedError
