"""GPU readings for charts; where there are none, which nodes have none and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.db.models import QuerySet

from controlplane.fleet.models import Node, Replica
from controlplane.telemetry import source
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window

TEMPERATURE = "temperature_celsius"
SIMULATED = "Simulated GPUs: the figures come from simulated engines."


def of_node(node: Node, figure: str, wanted: Window) -> SeriesSet | NoData:
    """Give one figure of each GPU of a node."""
    agent = getattr(node, "agent", None)
    if agent is None:
        return NoData(_why_none(node))
    declared = [int(gpu.get("index", i)) for i, gpu in enumerate(node.gpus)]
    found = source.gpu_chart(agent.public_id, declared, figure, wanted)
    if isinstance(found, NoData):
        if figure == TEMPERATURE and node.gpus and all(g.get("simulated") for g in node.gpus):
            return NoData(f"{node.name}: its GPUs are simulated and have no temperature.")
        return NoData(f"{found.reason} {_why_none(node)}")
    return _flagged(found, [node])


def of_replicas(
    replicas: QuerySet[Replica], wanted: Window, *, pool: str = ""
) -> SeriesSet | NoData:
    """Give the utilisation of the GPUs that some replicas hold, or all of a pool's."""
    chosen: dict[str, set[int]] = {}
    nodes: dict[str, Node] = {}
    for row in replicas.select_related("node__agent"):
        if row.node is None:
            continue
        nodes[row.node.name] = row.node
        agent = getattr(row.node, "agent", None)
        if agent is not None and row.gpu_indices:
            chosen.setdefault(agent.public_id, set()).update(row.gpu_indices)
    if not nodes:
        return NoData("No replica is on a known node: nobody reads the GPUs they use.")
    wanted_gpus = {agent: sorted(indices) for agent, indices in chosen.items()}
    found = source.gpu_spread(pool, wanted_gpus, wanted)
    if isinstance(found, NoData):
        return NoData(" ".join([found.reason, *map(_why_none, nodes.values())]))
    return _flagged(found, list(nodes.values()))


def _flagged(found: SeriesSet, nodes: Sequence[Node]) -> SeriesSet:
    """Say of simulated readings that they are."""
    is_simulated = any(gpu.get("simulated") for node in nodes for gpu in node.gpus)
    return replace(found, note=f"{SIMULATED} {found.note}".strip()) if is_simulated else found


def _why_none(node: Node) -> str:
    """Say why a node has no GPU readings."""
    if getattr(node, "agent", None) is None:
        return f"{node.name}: no agent has registered there, so nobody reads its GPUs."
    if not node.gpus:
        return f"{node.name}: its agent sees no GPU (no NVML driver there)."
    if all(gpu.get("simulated") for gpu in node.gpus):
        return f"{node.name}: its GPUs are simulated and no engine that holds one tells of it."
    return f"{node.name}: its agent sends no readings of its GPUs."
