"""Reads of scaling: what a decision is made from, and what pages show of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.catalog.models import Kind
from controlplane.domain import latency
from controlplane.domain.attention import Trouble
from controlplane.domain.capacity import kv_bytes_per_token, weight_bytes
from controlplane.domain.errors import NotFound
from controlplane.domain.placement import LOADING_ENGINES
from controlplane.domain.pool_settings import resolved_as_far_as_possible
from controlplane.domain.replica_placement import Need, NodeRoom
from controlplane.domain.replica_states import State
from controlplane.domain.scaling_inputs import (
    Demand,
    Figures,
    Member,
    Policy,
)
from controlplane.domain.scaling_inputs import (
    Override as OverrideInput,
)
from controlplane.fleet.models import Node, Pool, Replica
from controlplane.scaling.models import ColdStart, Override, ScalingDecision, ScalingPolicy
from controlplane.telemetry import recent
from controlplane.telemetry.live import Reports
from controlplane.telemetry.snapshots import NoData, PoolStep
from routing_agent import wire

ACTOR: Final = "scaling"
WINDOW_S: Final = 30  # of requests that a decision looks at
STEP_S: Final = recent.STEP_S
_FIELDS: Final = tuple(Policy.__dataclass_fields__)
COLD_STARTS_READ: Final = 20
LOST_AFTER_S: Final = 30.0
WITHOUT_KV_GAUGE: Final = frozenset({"llamacpp", "tgi"})  # docs/engines.md
ALARM_HOLDS_S: Final = 12.0  # a decision that is taken on and on is seen every five seconds
_LOSABLE: Final = frozenset({State.LOADING, State.WARMING, State.EJECTED, State.FAILED})


@dataclass(frozen=True, slots=True)
class Heard:
    """What agents said lately, or why nothing is known."""

    reports: Mapping[str, tuple[wire.Report, float]]  # by agent's public id, with ages in seconds
    missing: str = ""

    def of(self, node: Node | None) -> tuple[wire.Report, float] | None:
        """Give the report of a node's agent, if it is fresh."""
        agent = getattr(node, "agent", None)
        return None if agent is None else self.reports.get(agent.public_id)


def heard() -> Heard:
    """Give the reports that are fresh."""
    found: Reports | NoData = recent.latest_reports()
    if isinstance(found, NoData):
        return Heard({}, found.reason)
    limit_s = settings.AGENT_SILENT_AFTER_S
    fresh = {a: (r, age_s) for a, (r, age_s) in found.items() if age_s <= limit_s}
    return Heard(fresh, "" if fresh else "no agent reported lately")


def policies() -> QuerySet[ScalingPolicy]:
    """Give all policies with their pools."""
    return ScalingPolicy.objects.select_related("pool__model_version__model")


def policy(pool: str) -> ScalingPolicy:
    """Give the policy of a pool, or raise NotFound."""
    row = policies().filter(pool__slug=pool).first()
    if row is None:
        raise NotFound(f"Pool {pool!r} has no scaling policy.")
    return row


def policy_input(row: ScalingPolicy) -> Policy:
    """Give a policy as decisions take it."""
    values = {name: getattr(row, name) for name in _FIELDS if name != "wanted_by_people"}
    return Policy(**values, wanted_by_people=row.pool.wanted_replicas)


def override_of(pool: Pool, now: datetime) -> Override | None:
    """Give the override that holds now."""
    rows = Override.objects.filter(pool=pool, ended_at=None, expires_at__gt=now)
    return rows.order_by("-id").first()


def override_input(row: Override | None) -> OverrideInput | None:
    """Give an override as decisions take it."""
    if row is None:
        return None
    return OverrideInput(
        count=row.count, by=row.created_by, reason=row.reason, expires_at=row.expires_at
    )


# -- members -----------------------------------------------------------------------------------


def replicas_of(pool: Pool) -> list[Replica]:
    """Give the replicas of a pool that are not stopped, with their nodes and agents."""
    rows = Replica.objects.filter(pool=pool).exclude(state=State.STOPPED)
    return list(rows.select_related("node__agent", "pool").order_by("pk"))


def members(replicas: Iterable[Replica], said: Heard, now: datetime) -> list[Member]:
    """Give replicas as decisions take them, with what agents told of each."""
    seen = _seen(said)
    return [_member(r, seen.get(r.public_id, []), now) for r in replicas]


_View = tuple[wire.ReplicaReport, float]


def _seen(said: Heard) -> dict[str, list[_View]]:
    seen: dict[str, list[_View]] = {}
    for report, age_s in said.reports.values():
        for replica in report.replicas:
            seen.setdefault(replica.replica, []).append((replica, age_s))
    return seen


def _member(row: Replica, views: list[_View], now: datetime) -> Member:
    figures, missing = _figures(views, row.engine)
    state = State(row.state)
    is_run = row.executor == Replica.Executor.AGENT
    return Member(
        replica=row.public_id,
        state=state,
        is_spare=row.is_spare,
        is_run=is_run,
        is_lost=is_run and state in _LOSABLE and _is_silent(row.node, now),
        ready_at=row.ready_at,
        figures=figures,
        missing=missing,
        inflight_tokens=sum(v.inflight_tokens for v, _ in views),
        zone=row.node.zone if row.node else "",
        is_warmed=any(v.warmed and v.health == "healthy" for v, _ in views),
        drained_by_scaling=state is State.DRAINING and row.state_actor == ACTOR,
    )  # fmt: skip


def _is_silent(node: Node | None, now: datetime) -> bool:
    """Say whether a node's agent has been silent for long: what did not serve there is lost."""
    agent = getattr(node, "agent", None)
    seen_at = agent.last_seen_at if agent is not None else None
    return seen_at is None or (now - seen_at).total_seconds() > LOST_AFTER_S


def _figures(views: list[_View], engine: str) -> tuple[Figures | None, str]:
    """Give the freshest figures of an engine, or why there are none."""
    if not views:
        return None, "no agent reports it"
    fresh = [(v, a + v.scrape_age_s) for v, a in views if v.scrape_age_s is not None]
    if not fresh:
        return None, next((v.scrape_error for v, _ in views if v.scrape_error), "never scraped")
    view, age_s = min(fresh, key=lambda f: f[1])
    if age_s > settings.AGENT_SILENT_AFTER_S:
        return None, view.scrape_error or f"its figures are {age_s:.0f} s old"
    if view.engine_waiting is None:
        return None, "its engine does not tell its queue length"
    if lacks := _lacking(view, engine):
        return None, f"its engine does not tell its {lacks}"
    found = Figures(
        kv_usage=view.kv_usage,
        waiting=view.engine_waiting,
        running=view.engine_running or 0,
        max_running=view.engine_max_running,
        age_s=age_s,
    )
    return found, ""


def _lacking(view: wire.ReplicaReport, engine: str) -> str:
    """Say which figure is missing that engines of this make tell, or nothing."""
    if view.kv_usage is not None:
        return ""
    if engine not in WITHOUT_KV_GAUGE:
        return "KV usage"
    return "" if view.engine_max_running else "batch size"  # their batches stand for the cache


# -- demand ------------------------------------------------------------------------------------


def demand(pool: str, said: Heard) -> Demand:
    """Give what requests of a pool met in the last window."""
    if said.missing:
        return Demand(missing=said.missing)
    end_s = int(time.time()) // STEP_S * STEP_S + STEP_S  # with the step under way
    steps = recent.store().pool_steps(pool, end_s - WINDOW_S - STEP_S, end_s)
    if isinstance(steps, NoData):
        return Demand(missing=steps.reason)
    known = [s for s in steps if s is not None]
    waiting, oldest_s = _waiting(pool, said)
    return Demand(
        agent_wait_p95_s=_p95(known, "queue_wait"),
        engine_wait_p95_s=_p95(known, "engine_queue_wait"),
        requests=sum(n for s in known for n in s.requests.values()),
        waiting=waiting,
        oldest_wait_s=oldest_s,
        age_s=min((age_s for _, age_s in said.reports.values()), default=None),
        note=f"of requests that ended in the last {WINDOW_S} s, and who waits now",
    )


def _p95(steps: list[PoolStep], name: str) -> float | None:
    return latency.percentile(latency.merged(s.histograms.get(name, {}) for s in steps), 0.95)


def _waiting(pool: str, said: Heard) -> tuple[int | None, float]:
    """Give how many wait in the agents' queues and for how long the first has."""
    told = [r.waiting for r, _ in said.reports.values()]
    if any(lines is None for lines in told):
        return None, 0.0
    lines = [line for of_agent in told for line in of_agent or () if line.pool == pool]
    return sum(n.requests for n in lines), max((n.oldest_s for n in lines), default=0.0)


# -- places ------------------------------------------------------------------------------------


def program_of(row: ScalingPolicy) -> str:
    """Give what is started for a pool."""
    return row.program or row.pool.model_version.engine


def need(row: ScalingPolicy) -> Need:
    """Give what one more replica of a pool needs of a node."""
    version = row.pool.model_version
    weights = version.parameters and weight_bytes(
        parameters=version.parameters, dtype=version.dtype
    )
    shape = (version.layers, version.kv_heads, version.head_dim, version.context_tokens)
    kv_bytes = 0
    if all(shape):
        kv_bytes = kv_bytes_per_token(
            layers=shape[0] or 0, kv_heads=shape[1] or 0, head_dim=shape[2] or 0,
            dtype=version.kv_dtype,
        ) * (shape[3] or 0)  # fmt: skip
    return Need(
        program=program_of(row),
        gpus=row.gpus_per_replica,
        weight_bytes=weights or None,
        kv_bytes=kv_bytes,
        memory_ratio=row.memory_ratio,
    )


def adapter_room(pool: Pool, program: str) -> dict[str, int]:
    """Give the room for adapters that an engine of a pool is started with; {} = it takes none."""
    engine = "vllm" if program == "simulated" else program
    settings, _ = resolved_as_far_as_possible(pool.settings)
    takes = engine in LOADING_ENGINES and pool.model_version.model.kind == Kind.CHAT
    if not takes or not settings.adapter_slots:
        return {}
    return {
        "adapter_slots": settings.adapter_slots,
        "adapter_max_rank": settings.adapter_max_rank,
    }


def rooms(pool: Pool, said: Heard) -> list[NodeRoom]:
    """Give every node with what is free on it."""
    nodes = Node.objects.select_related("agent").order_by("name")
    rows = Replica.objects.exclude(state=State.STOPPED).select_related("node")
    held = [Holding(r.node_id, r.pool_id, r.url, tuple(r.gpu_indices)) for r in rows]
    return [_room(node, pool, held, said) for node in nodes]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one replica holds of a node: its GPUs, and an address nobody else may have."""

    node: int | None
    pool: int
    url: str
    gpus: tuple[int, ...]


def _room(node: Node, pool: Pool, held: list[Holding], said: Heard) -> NodeRoom:
    report = said.of(node)
    engines = [e for e in report[0].engines if e.state in ("running", "stopping")] if report else []
    here = [h for h in held if h.node == node.pk]
    facts = node.executor or {}
    ports = range(facts.get("first_port", 0), facts.get("last_port", -1) + 1)
    # Agents on one machine share its address: a port is taken whoever has it.
    urls = {h.url for h in held}
    busy = {e.port for e in engines}
    return NodeRoom(
        name=node.name,
        zone=node.zone,
        is_live=report is not None,
        programs=tuple(facts.get("programs", ())),
        gpus={g["index"]: int(g.get("memory_bytes", 0)) for g in node.gpus},
        held=frozenset(i for h in here for i in h.gpus) | {i for e in engines for i in e.gpus},
        free_ports=tuple(p for p in ports if p not in busy and engine_url(facts, p) not in urls),
        replicas=sum(h.pool == pool.pk for h in here),
    )


def engine_url(facts: Mapping[str, Any], port: int) -> str:
    """Give where an engine on a node's port is reached."""
    address = str(facts.get("address", ""))
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"


# -- pages -------------------------------------------------------------------------------------


def decisions(*, pool: str | None = None) -> QuerySet[ScalingDecision]:
    """Give decisions, newest first."""
    rows = ScalingDecision.objects.select_related("pool")
    return rows if pool is None else rows.filter(pool__slug=pool)


def alarms(now: datetime) -> QuerySet[ScalingDecision]:
    """Give the decisions of now that a person should look at."""
    since = now - timedelta(seconds=ALARM_HOLDS_S)
    return ScalingDecision.objects.select_related("pool").filter(is_alarm=True, last_at__gte=since)


def troubles() -> dict[str, list[Trouble]]:
    """Give the pools that cannot scale as their load asks."""
    told = Trouble(text="It cannot scale as its load asks.")
    return {row.pool.slug: [told] for row in alarms(timezone.now())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartTime:
    """How long starts of one version take on one node."""

    version: str
    node: str
    program: str
    count: int
    median_s: float
    longest_s: float
    at: datetime  # of the newest


def cold_starts(pool: Pool) -> list[ColdStartTime]:
    """Give what starts of a pool's version took, by node: the newest of each."""
    rows = ColdStart.objects.filter(model_version=pool.model_version).select_related("node")
    by_node: dict[tuple[str, str], list[ColdStart]] = {}
    for row in rows[: COLD_STARTS_READ * 20]:
        by_node.setdefault((row.node.name, row.program), []).append(row)
    return [
        ColdStartTime(
            version=pool.model_version.name,
            node=node,
            program=program,
            count=len(found[:COLD_STARTS_READ]),
            median_s=statistics.median(r.seconds for r in found[:COLD_STARTS_READ]),
            longest_s=max(r.seconds for r in found[:COLD_STARTS_READ]),
            at=found[0].at,
        )
        for (node, program), found in sorted(by_node.items())
    ]


def lead_time_s(pool: Pool) -> float | None:
    """Give how long a start of this pool's version takes, by those measured; None: never was."""
    rows = ColdStart.objects.filter(model_version=pool.model_version)[:COLD_STARTS_READ]
    seconds = list(rows.values_list("seconds", flat=True))
    return statistics.median(seconds) if seconds else None
