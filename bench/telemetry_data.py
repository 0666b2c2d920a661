"""Thirty days of a large fleet's roll-ups, made up: as many rows, as large, as its agents would."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from controlplane.domain import rollups
from controlplane.telemetry import services
from controlplane.telemetry.models import MemberRollUp, RollUp, Step
from controlplane.telemetry.rolling import Rolled
from controlplane.telemetry.snapshots import GpuStep, Minute, PoolStep, ReplicaStep
from controlplane.telemetry.topology import Topology
from routing_agent.wire import latency_bucket

GPUS_A_NODE = 8
VARIANTS = 24  # different minutes; which one a minute has goes by its hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """How large the fleet is. Replicas hold one GPU each, eight to a node."""

    replicas: int
    pools: int
    tenants: int

    def pool(self, replica: int) -> str:
        """Name the pool of a replica."""
        return f"pool-{replica % self.pools:02}"

    @property
    def nodes(self) -> int:
        """Give the number of nodes."""
        return math.ceil(self.replicas / GPUS_A_NODE)

    def topology(self) -> Topology:
        """Give what belongs to what."""
        held: dict[str, dict[str, tuple[int, ...]]] = {}
        for i in range(self.replicas):
            agent = f"agt-{i // GPUS_A_NODE}"
            by_agent = held.setdefault(self.pool(i), {})
            by_agent[agent] = (*by_agent.get(agent, ()), i % GPUS_A_NODE)
        pools = [f"pool-{i:02}" for i in range(self.pools)]
        return Topology(
            models={p: f"model-{i % 5}" for i, p in enumerate(pools)},
            versions=dict.fromkeys(pools, "v1"),
            nodes={f"rpl-{i}": f"node-{i // GPUS_A_NODE}" for i in range(self.replicas)},
            agents={f"agt-{n}": f"node-{n}" for n in range(self.nodes)},
            held=held,
        )


def minute(fleet: Fleet, dice: random.Random) -> Minute:
    """Make a busy minute up: log-normal latencies, all gauges known, two requests a second each."""
    steps: dict[str, PoolStep] = {}
    members: dict[str, dict[str, ReplicaStep]] = {}
    for i in range(fleet.replicas):
        members.setdefault(fleet.pool(i), {})[f"rpl-{i}"] = _replica(dice)
    for pool, replicas in members.items():
        answered = sum(r.requests for r in replicas.values())
        failed = dice.randrange(3)
        steps[pool] = PoolStep(
            histograms={
                "ttft": _histogram(dice, 0.2, answered),
                "tpot": _histogram(dice, 0.02, answered),
                "e2e": _histogram(dice, 3.0, answered),
                "queue_wait": _histogram(dice, 0.01, answered),
            },
            requests={"200": answered - failed, "502": failed, "499": dice.randrange(5)},
            prompt_tokens=sum(r.prompt_tokens for r in replicas.values()),
            cached_tokens=sum(r.cached_tokens for r in replicas.values()),
            output_tokens=sum(r.output_tokens for r in replicas.values()),
            replicas=replicas,
            reported={at: answered // 12 for at in range(0, 60, 5)},
        )
    for i in range(fleet.tenants):
        steps[f"tenant/tenant-{i:03}"] = PoolStep(
            requests={"200": dice.randrange(1000)}, prompt_tokens=10_000, output_tokens=5_000
        )
    gpus = {f"agt-{n}": {at: _readings(dice) for at in range(0, 60, 5)} for n in range(fleet.nodes)}
    return Minute(subjects=steps, gpus=gpus)


def _replica(dice: random.Random) -> ReplicaStep:
    return ReplicaStep(
        running=dice.randrange(32),
        waiting=dice.randrange(4),
        kv_usage=dice.random(),
        requests=dice.randrange(60, 180),
        errors=dice.randrange(2),
        prompt_tokens=dice.randrange(50_000, 150_000),
        cached_tokens=dice.randrange(40_000),
        output_tokens=dice.randrange(20_000, 60_000),
        preemptions=dice.randrange(2),
    )


def _readings(dice: random.Random) -> dict[int, GpuStep]:
    return {
        i: GpuStep(
            utilization=dice.random(),
            memory_used_bytes=dice.randrange(80 * 2**30),
            temperature_celsius=40 + 40 * dice.random(),
        )
        for i in range(GPUS_A_NODE)
    }


def _histogram(dice: random.Random, middle_s: float, samples: int) -> dict[int, int]:
    """Draw latencies; of many, each drawn one stands for several."""
    drawn = min(samples, 400)
    found: dict[int, int] = {}
    for _ in range(drawn):
        bucket = latency_bucket(dice.lognormvariate(math.log(middle_s), 0.7))
        found[bucket] = found.get(bucket, 0) + max(1, samples // drawn)
    return found


def minutes(fleet: Fleet, seed: int = 1) -> list[Minute]:
    """Make some different minutes up."""
    dice = random.Random(seed)
    return [minute(fleet, dice) for _ in range(VARIANTS)]


def fill(made: list[Rolled], end: datetime, days: int) -> Iterator[str]:
    """Write 48 h of minutes and `days` of hours before `end`; tells how far it is."""
    bodies = [(_rows(variant), _members(variant)) for variant in made]
    for step, count in ((Step.MINUTE, 48 * 60), (Step.HOUR, days * 24)):
        for last in range(count, 0, -60):
            times = [end - timedelta(seconds=step * i) for i in range(last, max(last - 60, 0), -1)]
            with transaction.atomic(), connection.cursor() as cursor:
                for at in times:
                    when = connection.ops.adapt_datetimefield_value(at)
                    rows, members = bodies[at.hour % len(made)]
                    cursor.executemany(INSERT_ROW, [(*row, int(step), when) for row in rows])
                    cursor.executemany(INSERT_MEMBERS, [(*m, int(step), when) for m in members])
            yield f"{count - max(last - 60, 0)} of {count} {step.label}s"


# Past the ORM, which would take most of an hour for a million rows.
INSERT_ROW = (
    "INSERT INTO telemetry_rollup (level, subject, version, covered_s, requests, failed, figures,"
    " step_s, at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
INSERT_MEMBERS = (
    "INSERT INTO telemetry_memberrollup (kind, shard, members, step_s, at)"
    " VALUES (%s, %s, %s, %s, %s)"
)


def _rows(variant: Rolled) -> list[tuple[Any, ...]]:
    return [
        (*key, f.covered_s, f.requests, f.failed, rollups.packed(f))
        for key, f in variant.rows.items()
    ]


def _members(variant: Rolled) -> list[tuple[Any, ...]]:
    return [
        (str(kind), shard, rollups.packed(found))
        for (kind, shard), found in services.by_shard(variant).items()
    ]


def counts() -> dict[str, int]:
    """Give how many rows there are."""
    return {
        f"{model.__name__} {step.label}s": model._default_manager.filter(step_s=step).count()
        for model in (RollUp, MemberRollUp)
        for step in Step
    }
