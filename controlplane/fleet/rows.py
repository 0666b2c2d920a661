"""What pages show of pools, replicas and nodes: the database's rows beside live figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from controlplane.domain.attention import (
    PoolCounts,
    PoolHealth,
    Trouble,
    pool_health,
)
from controlplane.domain.replica_states import State
from controlplane.fleet import selectors, troubles
from controlplane.fleet.models import Agent, Node, Pool, Replica
from controlplane.fleet.offers import Offer, offers
from controlplane.telemetry import live, recent, source
from controlplane.telemetry.live import ReplicaNow, Reports
from controlplane.telemetry.series import PoolSummary
from controlplane.telemetry.snapshots import NoData
from routing_agent.wire import Gpu

UNKNOWN = ReplicaNow()
STATE_ORDER = {
    State.FAILED: 0,
    State.EJECTED: 1,
    State.DRAINING: 2,
    State.LOADING: 3,
    State.WARMING: 3,
    State.WAKING: 3,
    State.PENDING: 3,
    State.READY: 4,
    State.SLEEPING: 5,
    State.STOPPED: 6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One pool in a list."""

    pool: Pool
    counts: PoolCounts
    health: PoolHealth
    figures: PoolSummary
    kv_usage_max: float | None
    running: int | None
    waiting: int | None

    @property
    def slug(self) -> str:
        """Give the pool's name."""
        return self.pool.slug

    @property
    def version_name(self) -> str:
        """Give model and version as one text."""
        return f"{self.pool.model_version.model.name} {self.pool.model_version.name}"

    @property
    def expected(self) -> int:
        """Give how many replicas should be ready."""
        return max(self.counts.wanted, self.counts.live - self.counts.draining)


def counts_of(pool: Pool) -> PoolCounts:
    """Read the counts that `selectors.pools_overview` adds to a pool."""
    return PoolCounts(
        wanted=pool.wanted_replicas,
        **{
            name: getattr(pool, f"{name}_count")
            for name in ("ready", "ejected", "draining", "starting", "failed")
        },
    )


def pool_rows(pools: Iterable[Pool], reports: Reports | NoData) -> list[PoolRow]:
    """Give pools with their live figures, troubled ones first, in one round trip to Redis."""
    found = list(pools)
    summaries = source.pool_summaries([p.slug for p in found])
    figures: Mapping[str, PoolSummary] = {} if isinstance(summaries, NoData) else summaries
    members: dict[str, list[ReplicaNow]] = {}
    now = live.replicas(reports)
    if not isinstance(reports, NoData):
        pool_of = {r.replica: r.pool for report, _ in reports.values() for r in report.replicas}
        for name, figure in now.items():
            members.setdefault(pool_of[name], []).append(figure)
    wrong = troubles.now()
    rows = [
        _pool_row(p, figures.get(p.slug), members.get(p.slug, []), wrong.get(p.slug, ()))
        for p in found
    ]
    return sorted(rows, key=lambda r: (r.health.rank, r.slug))


def _pool_row(
    pool: Pool,
    figures: PoolSummary | None,
    members: list[ReplicaNow],
    wrong: Sequence[Trouble],
) -> PoolRow:
    counts = counts_of(pool)
    fresh = [m for m in members if m.is_fresh]
    running = [m.running for m in fresh if m.running is not None]
    waiting = [m.waiting for m in fresh if m.waiting is not None]
    return PoolRow(
        pool=pool,
        counts=counts,
        health=pool_health(counts, wrong),
        figures=figures or PoolSummary(),
        kv_usage_max=live.kv_usage_max(fresh),
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
    )


# What a table of replicas can be sorted by: column → path of attributes of a `ReplicaRow`.
REPLICA_SORTS: Mapping[str, str] = {
    "public_id": "replica.public_id",
    "state": "rank",
    "pool": "replica.pool.slug",
    "node": "replica.node.name",
    "inflight_requests": "now.inflight_requests",
    "inflight_tokens": "now.inflight_tokens",
    "running": "now.running",
    "kv_usage": "now.kv_usage",
    "hit_rate": "now.hit_rate",
    "errors_total": "now.errors_total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica in a list or on its page."""

    replica: Replica
    now: ReplicaNow
    state_reason: str
    offers: tuple[Offer, ...]
    gpus: tuple[Gpu, ...] = ()

    @property
    def rank(self) -> int:
        """Give how well it does by its state: 0 is the worst."""
        return STATE_ORDER.get(State(self.replica.state), 9)

    @property
    def is_troubled(self) -> bool:
        """Say whether it deserves attention."""
        is_out = self.replica.state in {State.FAILED, State.EJECTED}
        return is_out or bool(self.now.unhealthy) or self.now.is_broken

    @property
    def is_told_already(self) -> bool:
        """Say whether the reason of its state says why agents find it unhealthy."""
        why = self.now.health_reason
        return bool(why) and why in self.state_reason


def replica_rows(replicas: Iterable[Replica], reports: Reports | NoData) -> list[ReplicaRow]:
    """Give replicas with their live figures and what may be done, troubled ones first."""
    found = list(replicas)
    now = live.replicas(reports)
    ready: dict[int, int] = {}
    for replica in found:
        ready[replica.pool_id] = ready.get(replica.pool_id, 0) + (replica.state == State.READY)
    rows = [
        _replica_row(r, now.get(r.public_id, UNKNOWN), ready_in_pool=ready[r.pool_id])
        for r in found
    ]
    return sorted(rows, key=lambda r: (r.rank, r.replica.public_id))


def replica_row(replica: Replica, reports: Reports | NoData) -> ReplicaRow:
    """Give one replica with its live figures and what may be done."""
    ready = selectors.replicas(pool=replica.pool.slug).filter(state=State.READY).count()
    now = live.replicas(reports).get(replica.public_id, UNKNOWN)
    return _replica_row(replica, now, ready_in_pool=ready)


def _replica_row(replica: Replica, now: ReplicaNow, *, ready_in_pool: int) -> ReplicaRow:
    return ReplicaRow(
        replica=replica,
        now=now,
        state_reason=replica.state_reason,
        offers=offers(replica, now, ready_in_pool=ready_in_pool),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node with its agent and GPUs."""

    node: Node
    agent: Agent | None
    status: str
    reason: str
    seen_at: datetime | None
    behind_by: int
    gpus: tuple[Gpu, ...]
    report_age_s: float | None = None
    open_connections: int | None = None
    memory_bytes: int | None = None
    restarted_lately: bool = False

    @property
    def is_troubled(self) -> bool:
        """Say whether it deserves attention."""
        return self.status in {"silent", "behind", "never"}

    @property
    def rank(self) -> int:
        """Give how well its agent does: 0 is the worst."""
        return {"silent": 0, "never": 1, "behind": 2, "draining": 3}.get(self.status, 9)

    @property
    def is_old(self) -> bool:
        """Say whether there is no fresh reading of its GPUs, whatever its agent does."""
        return self.report_age_s is None or self.report_age_s > live.FRESH_S


def node_rows(
    nodes: Iterable[Node], reports: Reports | NoData, *, newest_epoch: int
) -> list[NodeRow]:
    """Give nodes with what their agents last said, silent and late ones first."""
    rows = [_node_row(n, reports, newest_epoch) for n in nodes]
    return sorted(rows, key=lambda r: (r.rank, r.node.name))


def _node_row(node: Node, reports: Reports | NoData, newest_epoch: int) -> NodeRow:
    agent: Agent | None = getattr(node, "agent", None)
    if agent is None:
        return NodeRow(
            node=node,
            agent=None,
            status="never",
            reason="No agent has registered on this node.",
            seen_at=None,
            behind_by=0,
            gpus=declared_gpus(node),
        )
    report = None if isinstance(reports, NoData) else reports.get(agent.public_id)
    seen_at = seen(agent, report[1] if report else None)
    behind = max(0, newest_epoch - agent.applied_epoch)
    status, reason = agent_status(agent, seen_at, newest_epoch)
    return NodeRow(
        node=node,
        agent=agent,
        status=status,
        reason=reason,
        seen_at=seen_at,
        behind_by=behind,
        gpus=report[0].node.gpus if report else declared_gpus(node),
        report_age_s=report[1] if report else None,
        open_connections=report[0].open_connections if report else None,
        memory_bytes=report[0].memory_bytes if report else None,
        restarted_lately=_restarted_lately(agent),
    )


def seen(agent: Agent, report_age_s: float | None) -> datetime | None:
    """Give when an agent was last heard of: the newer of database and recent store."""
    if report_age_s is None:
        return agent.last_seen_at
    by_report = timezone.now() - timedelta(seconds=report_age_s)
    return max(by_report, agent.last_seen_at) if agent.last_seen_at else by_report


def agent_status(agent: Agent, seen_at: datetime | None, newest_epoch: int) -> tuple[str, str]:
    """Judge an agent by when it was heard and which table it runs."""
    behind = newest_epoch - agent.applied_epoch
    silence_s = (timezone.now() - seen_at).total_seconds() if seen_at else None
    if silence_s is None:
        return "never", "It registered and has not reported since."
    if silence_s > settings.AGENT_SILENT_AFTER_S:
        return "silent", (
            "No report: it may be down or cut off. If it runs, it serves from its last table."
        )
    if behind > 0:
        return "behind", f"It runs epoch {agent.applied_epoch}, {behind} behind."
    if behind < 0:
        return "ahead", f"It runs epoch {agent.applied_epoch}, newer than ours ({newest_epoch})."
    if agent.table_source == "disk":
        return "current", "It started from its table on disk."
    return ("draining", "It is shutting down.") if agent.draining else ("current", "")


def _restarted_lately(agent: Agent) -> bool:
    if agent.started_at is None:
        return False
    return timezone.now() - agent.started_at < timedelta(minutes=15)


def declared_gpus(node: Node) -> tuple[Gpu, ...]:
    """Give a node's GPUs as declared, without readings."""
    return tuple(
        Gpu(
            index=int(gpu.get("index", i)),
            model=str(gpu.get("model", "")),
            memory_bytes=int(gpu.get("memory_bytes", 0)),
        )
        for i, gpu in enumerate(node.gpus)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCells:
    """The GPUs that replicas hold on one node."""

    node: str
    gpus: tuple[Gpu, ...]
    is_old: bool


def gpu_cells(replicas: Iterable[Replica], reports: Reports | NoData) -> list[GpuCells]:
    """Give the GPUs of some replicas by node, with the agents' newest readings."""
    held: dict[Node, set[int]] = {}
    for replica in replicas:
        if replica.node is not None and replica.gpu_indices:
            held.setdefault(replica.node, set()).update(replica.gpu_indices)
    return [_cells(node, indices, reports) for node, indices in sorted(held.items(), key=_name)]


def _name(held: tuple[Node, set[int]]) -> str:
    return held[0].name


def _cells(node: Node, indices: set[int], reports: Reports | NoData) -> GpuCells:
    agent = getattr(node, "agent", None)
    report = None if agent is None or isinstance(reports, NoData) else reports.get(agent.public_id)
    gpus = report[0].node.gpus if report else declared_gpus(node)
    return GpuCells(
        node=node.name,
        gpus=tuple(g for g in gpus if g.index in indices),
        is_old=report is None or report[1] > live.FRESH_S,
    )


def reports() -> Reports | NoData:
    """Give the agents' newest reports from the recent store."""
    return recent.latest_reports()
