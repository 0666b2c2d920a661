"""Reads of the fleet, each with a constant number of queries. Live figures come from telemetry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from django.db.models import Count, Q, QuerySet

from controlplane.catalog.models import AdapterVersion, Model
from controlplane.catalog.selectors import live_adapter_versions
from controlplane.domain.errors import NotFound
from controlplane.domain.placement import Plan, Seat, Wish, place
from controlplane.domain.pool_settings import resolved_as_far_as_possible
from controlplane.domain.replica_states import State
from controlplane.fleet.models import (
    AdapterPlacement,
    Agent,
    Node,
    Pool,
    Replica,
    Shadow,
    TrafficSplit,
)
from controlplane.telemetry.topology import Topology

STARTING = (State.PENDING, State.LOADING, State.WARMING, State.WAKING)


def _count(*states: State) -> Count:
    return Count("replicas", filter=Q(replicas__state__in=states))


def pools_overview() -> QuerySet[Pool]:
    """Give all pools with their version and model, and replicas counted by state.

    Adds `ready_count`, `ejected_count`, `draining_count`, `starting_count`, `failed_count`.
    """
    return Pool.objects.select_related("model_version__model", "fallback_pool").annotate(
        ready_count=_count(State.READY),
        ejected_count=_count(State.EJECTED),
        draining_count=_count(State.DRAINING),
        starting_count=_count(*STARTING),
        failed_count=_count(State.FAILED),
    )


def pool_names() -> list[str]:
    """Give the names of all pools."""
    return list(Pool.objects.values_list("slug", flat=True))


def pool(slug: str) -> Pool:
    """Give one pool with the same additions, or raise NotFound."""
    found = pools_overview().filter(slug=slug).first()
    if found is None:
        raise NotFound(f"There is no pool {slug!r}.")
    return found


def replicas(*, pool: str | None = None) -> QuerySet[Replica]:
    """Give replicas with pool, model version and node."""
    rows = Replica.objects.select_related("pool__model_version__model", "node")
    return rows if pool is None else rows.filter(pool__slug=pool)


def replica(replica_id: str) -> Replica:
    """Give one replica by public id, or raise NotFound."""
    found = replicas().filter(public_id=replica_id).first()
    if found is None:
        raise NotFound(f"There is no replica {replica_id!r}.")
    return found


def nodes() -> QuerySet[Node]:
    """Give nodes with their agents and `replica_count` (those not stopped)."""
    live = ~Q(replicas__state__in=[State.STOPPED, State.FAILED])
    return Node.objects.select_related("agent").annotate(
        replica_count=Count("replicas", filter=live)
    )


def node(name: str) -> Node:
    """Give one node by name, or raise NotFound."""
    found = nodes().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no node {name!r}.")
    return found


def agents() -> QuerySet[Agent]:
    """Give registered agents with their nodes."""
    return Agent.objects.select_related("node")


def cards(pool: Pool) -> frozenset[tuple[str, int]]:
    """Give the cards and MIG slices that a pool's replicas hold: node and index."""
    held = Replica.objects.filter(pool=pool, node__isnull=False)
    held = held.exclude(state__in=[State.STOPPED, State.FAILED])
    rows = held.values_list("node__name", "gpu_indices")
    return frozenset((node, int(index)) for node, indices in rows for index in indices)


def shadows() -> QuerySet[Shadow]:
    """Give which pools are copied where."""
    return Shadow.objects.select_related(
        "pool__model_version__model", "shadow_pool__model_version__model"
    )


def splits(*, model: str | None = None) -> QuerySet[TrafficSplit]:
    """Give pools' shares of models' sessions."""
    rows = TrafficSplit.objects.select_related("model", "pool")
    return rows if model is None else rows.filter(model__name=model)


def pools_of(model: Model) -> QuerySet[Pool, str]:
    """Give the names of a model's pools."""
    found = Pool.objects.filter(model_version__model=model)
    return found.order_by("slug").values_list("slug", flat=True)


def topology() -> Topology:
    """Give what belongs to what, for roll-ups: three queries."""
    pools = list(
        Pool.objects.values_list("slug", "model_version__model__name", "model_version__name")
    )
    agents = dict(Agent.objects.values_list("public_id", "node__name"))
    held: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    nodes: dict[str, str] = {}
    live = Replica.objects.exclude(state=State.STOPPED).filter(node__isnull=False)
    columns = ("public_id", "pool__slug", "node__name", "node__agent__public_id", "gpu_indices")
    for replica_id, slug, node_name, agent, indices in live.values_list(*columns):
        nodes[replica_id] = node_name
        if agent is not None:
            held[slug][agent].update(indices)
    return Topology(
        models={slug: model for slug, model, _ in pools},
        versions={slug: version for slug, _, version in pools},
        nodes=nodes,
        agents=agents,
        held={
            slug: {agent: tuple(sorted(gpus)) for agent, gpus in by_agent.items()}
            for slug, by_agent in held.items()
        },
    )


def adapters_wanted() -> dict[str, tuple[str, ...]]:
    """Give what each replica, by public id, is told to hold, by served name: one query."""
    found: dict[str, list[str]] = defaultdict(list)
    rows = AdapterPlacement.objects.filter(wanted=True)
    for replica_id, name in rows.values_list("replica__public_id", "version__served_name"):
        found[replica_id].append(name)
    return {replica_id: tuple(sorted(names)) for replica_id, names in found.items()}


def placements() -> QuerySet[AdapterPlacement]:
    """Give what is and is to be where, with replicas, their pools and agents, and versions."""
    return AdapterPlacement.objects.select_related(
        "replica__pool", "replica__node__agent", "version__adapter__tenant"
    )


def adapter_plan(explained: Collection[str] = ()) -> Plan:
    """Say what each replica should hold by now; of some adapters why they are missing where."""
    return place(_wishes(), _seats(), explained=explained)


def _wishes() -> list[Wish]:
    return [_wish(version) for version in live_adapter_versions()]


def _wish(version: AdapterVersion) -> Wish:
    adapter = version.adapter
    used_at = max(filter(None, (adapter.last_used_at, version.created_at)))
    return Wish(
        served_name=version.served_name,
        adapter=f"{adapter.tenant.slug}/{adapter.name}",
        model=adapter.model.name,
        rank=version.rank,
        used_at=used_at.timestamp(),
        pinned=adapter.pinned,
        active=version.state == AdapterVersion.State.ACTIVE,
    )


def _seats() -> list[Seat]:
    held = adapters_wanted()
    rows = Replica.objects.select_related("pool__model_version__model", "node__agent")
    return [_seat(replica, frozenset(held.get(replica.public_id, ()))) for replica in rows]


def _seat(replica: Replica, holds: frozenset[str]) -> Seat:
    settings, _ = resolved_as_far_as_possible(replica.pool.settings)
    slots, max_rank = settings.adapter_slots, settings.adapter_max_rank
    if replica.executor == Replica.Executor.AGENT:  # not above what its engine was started for
        slots = min(slots, replica.launch.get("adapter_slots", 0))
        max_rank = min(max_rank, replica.launch.get("adapter_max_rank", 0))
    return Seat(
        replica=replica.public_id,
        pool=replica.pool.slug,
        model=replica.pool.model_version.model.name,
        state=State(replica.state),
        engine=replica.engine,
        slots=slots,
        max_rank=max_rank,
        has_node=replica.node is not None,
        has_agent=replica.node is not None and hasattr(replica.node, "agent"),
        holds=holds,
    )
