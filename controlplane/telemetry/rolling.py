"""A minute as the recent store has it → figures of every level. Pure.

Pools are split by version where more than one was told of; what engines say of themselves (load,
KV usage, GPUs) belongs to the version the pool serves now. The fleet, versions and nodes are sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry.snapshots import GpuStep, Minute, PoolStep, ReplicaStep
from controlplane.telemetry.topology import Topology

STEP_S = 5
MINUTE_S = 60
FLEET, POOL, VERSION, NODE, TENANT = "fleet", "pool", "version", "node", "tenant"
TENANT_PREFIX = "tenant/"
Key = tuple[str, str, str]  # level, subject, version: the last only of pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What is kept of one minute."""

    rows: Mapping[Key, Figures]
    replicas: Mapping[str, Figures] = field(default_factory=dict)  # by public id
    gpus: Mapping[str, Mapping[int, Figures]] = field(default_factory=dict)  # by agent and index


def version_subject(model: str, version: str) -> str:
    """Name a version among all models' versions."""
    return f"{model}:{version}"


def roll(minute: Minute, topology: Topology) -> Rolled:
    """Sum one minute up at every level."""
    steps = minute.subjects
    pools = {n: s for n, s in steps.items() if "@" not in n and "/" not in n}
    gpus = {agent: gpu_figures(readings) for agent, readings in minute.gpus.items()}
    replicas = {
        name: replica_figures(r, covered_s(step))
        for step in pools.values()
        for name, r in step.replicas.items()
    }
    whole = {p: _with_gpus(p, pool_figures(step), gpus, topology) for p, step in pools.items()}
    rows: dict[Key, Figures] = {}
    for pool, figures in whole.items():
        rows |= _by_version(pool, figures, _told_versions(pool, steps), topology)
    rows |= _versions(rows, topology)
    rows |= _nodes(replicas, gpus, topology)
    rows |= {
        (TENANT, name.removeprefix(TENANT_PREFIX), ""): pool_figures(step)
        for name, step in steps.items()
        if name.startswith(TENANT_PREFIX)
    }
    if whole:
        rows[(FLEET, "", "")] = _fleet(pools.values(), whole.values(), gpus)
    return Rolled(rows=rows, replicas=replicas, gpus=gpus)


def covered_s(step: PoolStep, base_s: int = MINUTE_S) -> int:
    """Give how much of a step or minute was reported; a minute tells by its steps."""
    return min(base_s, STEP_S * len(step.reported)) or base_s


def pool_figures(step: PoolStep, base_s: int = MINUTE_S) -> Figures:
    """Give a pool's figures of one step or minute, over its replicas."""
    covered = covered_s(step, base_s)
    requests = sum(step.requests.values())
    seen = [replica_figures(r, covered) for r in step.replicas.values()]
    return msgspec.structs.replace(
        rollups.over_subjects(seen),
        covered_s=covered,
        requests=requests,
        failed=sum(n for status, n in step.requests.items() if status.startswith("5")),
        statuses=dict(step.requests),
        ttft=dict(step.histograms.get("ttft", {})),
        tpot=dict(step.histograms.get("tpot", {})),
        e2e=dict(step.histograms.get("e2e", {})),
        queue_wait=dict(step.histograms.get("queue_wait", {})),
        prompt_tokens=step.prompt_tokens,
        cached_tokens=step.cached_tokens,
        output_tokens=step.output_tokens,
        retries=step.retries,
        shed=step.shed,
        peak_rate=peak_rate([step], requests / covered),
    )


def peak_rate(steps: Iterable[PoolStep], at_least: float) -> float:
    """Give the requests a second of the busiest step, over several subjects of one minute."""
    by_step: dict[int, int] = defaultdict(int)
    for step in steps:
        for second, n in step.reported.items():
            by_step[second] += n
    return max([at_least, *(n / STEP_S for n in by_step.values())])


def replica_figures(replica: ReplicaStep, covered: int) -> Figures:
    """Give one replica's figures; its gauges stand for all of the step."""
    knows_load = replica.running is not None or replica.waiting is not None
    knows_kv = replica.kv_usage is not None
    return Figures(
        covered_s=covered,
        requests=replica.requests,
        failed=replica.errors,
        prompt_tokens=replica.prompt_tokens,
        cached_tokens=replica.cached_tokens,
        output_tokens=replica.output_tokens,
        preemptions=replica.preemptions,
        load_s=covered if knows_load else 0,
        running_s=round((replica.running or 0) * covered),
        waiting_s=round((replica.waiting or 0) * covered),
        kv_replica_s=covered if knows_kv else 0,
        kv_s=(replica.kv_usage or 0.0) * covered,
        kv_max=replica.kv_usage if replica.kv_max is None else replica.kv_max,
    )


def gpu_figures(readings: Mapping[int, Mapping[int, GpuStep]]) -> dict[int, Figures]:
    """Give each GPU's figures over some steps of readings, by index."""
    found: dict[int, list[Figures]] = defaultdict(list)
    for step in readings.values():
        for index, told in step.items():
            found[index].append(_reading(told))
    return {index: rollups.over_time(parts) for index, parts in found.items()}


def reading(gpu: GpuStep | None) -> Figures | None:
    """Give what one reading of a GPU says of its step; None for none."""
    return None if gpu is None else _reading(gpu)


def _reading(gpu: GpuStep) -> Figures:
    knows_use, knows_memory = gpu.utilization is not None, gpu.memory_used_bytes is not None
    return Figures(
        covered_s=STEP_S,
        gpu_s=STEP_S if knows_use else 0,
        utilization_s=(gpu.utilization or 0.0) * STEP_S,
        utilization_max=gpu.utilization,
        memory_gpu_s=STEP_S if knows_memory else 0,
        memory_byte_s=int(gpu.memory_used_bytes or 0) * STEP_S,
        temperature_max=gpu.temperature_celsius,
    )


Gpus = Mapping[str, Mapping[int, Figures]]


def _with_gpus(pool: str, figures: Figures, gpus: Gpus, topology: Topology) -> Figures:
    held = topology.held.get(pool, {})
    found = [
        gpus[agent][i]
        for agent, indices in held.items()
        for i in indices
        if agent in gpus and i in gpus[agent]
    ]
    return rollups.over_subjects([figures, *found]) if found else figures


def _told_versions(pool: str, steps: Mapping[str, PoolStep]) -> dict[str, PoolStep]:
    begin = f"{pool}@"
    return {n.removeprefix(begin): s for n, s in steps.items() if n.startswith(begin)}


def _by_version(
    pool: str, whole: Figures, told: Mapping[str, PoolStep], topology: Topology
) -> dict[Key, Figures]:
    """Split a pool's figures by version; with one version, told or known, there is one row."""
    served = topology.versions.get(pool, "")
    if len(told) < 2:
        return {(POOL, pool, next(iter(told), served)): whole}
    found = {(POOL, pool, v): pool_figures(s) for v, s in told.items()}
    current = (POOL, pool, served if served in told else max(told))
    found[current] = _with_readings(found[current], whole)
    return found


def _with_readings(counts: Figures, whole: Figures) -> Figures:
    """Give a version's own counts with what the pool's engines and GPUs say."""
    return msgspec.structs.replace(
        whole,
        **{
            name: getattr(counts, name)
            for name in (
                *("requests", "failed", "statuses", "ttft", "tpot", "e2e", "queue_wait"),
                *("prompt_tokens", "cached_tokens", "output_tokens", "retries", "shed"),
                "peak_rate",
            )
        },
    )


def _versions(rows: Mapping[Key, Figures], topology: Topology) -> dict[Key, Figures]:
    found: dict[str, list[Figures]] = defaultdict(list)
    for (_, pool, version), figures in rows.items():
        if version and pool in topology.models:
            found[version_subject(topology.models[pool], version)].append(figures)
    return {(VERSION, name, ""): rollups.over_subjects(parts) for name, parts in found.items()}


def _nodes(replicas: Mapping[str, Figures], gpus: Gpus, topology: Topology) -> dict[Key, Figures]:
    found: dict[str, list[Figures]] = defaultdict(list)
    for name, figures in replicas.items():
        if name in topology.nodes:
            found[topology.nodes[name]].append(figures)
    for agent, by_index in gpus.items():
        if agent in topology.agents:
            found[topology.agents[agent]].extend(by_index.values())
    return {(NODE, name, ""): rollups.over_subjects(parts) for name, parts in found.items()}


def _fleet(pools: Iterable[PoolStep], whole: Iterable[Figures], gpus: Gpus) -> Figures:
    """Add all pools up; of GPUs each counts once, also one that no pool holds or two do."""
    total = rollups.over_subjects(whole)
    every = rollups.over_subjects(f for by_index in gpus.values() for f in by_index.values())
    of_gpus = ("gpu_s", "utilization_s", "utilization_max", "memory_gpu_s", "memory_byte_s")
    return msgspec.structs.replace(
        total,
        peak_rate=peak_rate(pools, rollups.rate(total.requests, total) or 0.0),
        temperature_max=every.temperature_max,
        **{name: getattr(every, name) for name in of_gpus},
    )
