"""Gathers what needs attention across the control plane; the rules for it are in `domain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from django.utils import timezone

from controlplane import readiness
from controlplane.audit.models import AuditEvent
from controlplane.domain.alert_rules import BY_NAME
from controlplane.domain.alert_rules import Severity as AlertSeverity
from controlplane.domain.attention import PoolCounts, Problem, Severity, in_order, pool_problem
from controlplane.domain.replica_states import State
from controlplane.fleet import rows, selectors
from controlplane.fleet.models import Agent, Pool, Replica
from controlplane.reliability import selectors as reliability
from controlplane.reliability.models import Alert
from controlplane.rollouts import selectors as rollouts
from controlplane.routing import selectors as routing
from controlplane.routing.models import LoopRun, Publication, RoutingEpoch
from controlplane.scaling import selectors as scaling
from controlplane.telemetry.live import Reports
from controlplane.telemetry.prometheus import prometheus
from controlplane.telemetry.snapshots import NoData

LATE_FACTOR = 3  # a loop is late after this many intervals without a run
LATE_LEAST_S = 20.0
LOOPS_ONE_BY_ONE = 2  # in the list of problems; more of them late are one line
FIRST_RUNS_S = 120.0  # what a new control plane may take until beat and worker are at work
ROLLOUT_REMEDIES = {
    "Paused": "Resume, promote or abort it: nothing moves until then.",
    "Degraded": "Stable has everything again. Look at what was worse before the next try.",
}
SLOW_START_LIMIT_S = 600.0  # a replica that starts for longer than this is stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The control plane's own state, read once for a page."""

    publication: Publication
    agents: list[Agent]
    lags: dict[str, float | None]  # by the agent's public id
    loops: list[LoopRun]
    firing: reliability.Firing

    @property
    def behind(self) -> list[Agent]:
        """Give the agents without the newest table."""
        return [a for a in self.agents if self.lags.get(a.public_id) is not None]


def look() -> Plane:
    """Read the control plane's state."""
    publication, agents = routing.publication(), list(selectors.agents())
    return Plane(
        publication=publication,
        agents=agents,
        lags=routing.delivery_lag(publication, agents),
        loops=list(LoopRun.objects.order_by("name")),
        firing=reliability.firing(),
    )


def problems(pools: list[Pool], reports: Reports | NoData, plane: Plane) -> list[Problem]:
    """Give everything that needs a person, the worst first."""
    of_pools = pool_problems(pools)
    found = [
        *of_pools,
        *replica_problems(),
        *agent_problems(plane, reports),
        *publication_problems(plane.publication),
        *machinery_problems(plane.loops, reports),
        *alert_problems(plane.firing.loud, {p.target[1] for p in of_pools}),
        *rollout_problems(),
        *scaling_problems(),
    ]
    return in_order(found)


def pool_problems(pools: list[Pool]) -> list[Problem]:
    """Give pools that do not serve as they should, each with when its newest trouble began."""
    since: dict[int, datetime] = {}
    troubled = Replica.objects.filter(state__in=[State.EJECTED, State.FAILED])
    for pool_id, at in troubled.values_list("pool_id", "state_since"):
        since[pool_id] = min(at, since.get(pool_id, at))
    found = [pool_problem(p.slug, counts(p), since.get(p.pk)) for p in pools]
    return [p for p in found if p is not None]


def counts(pool: Pool) -> PoolCounts:
    """Read a pool's counts."""
    return rows.counts_of(pool)


def replica_problems() -> list[Problem]:
    """Give replicas that are out or do not come up."""
    return [
        _replica_problem(r)
        for r in selectors.replicas().filter(
            state__in=[State.FAILED, State.EJECTED, State.LOADING, State.WARMING, State.WAKING]
        )
        if r.state in {State.FAILED, State.EJECTED} or (not r.is_spare and _is_stuck(r))
    ]


def _is_stuck(replica: Replica) -> bool:
    return (timezone.now() - replica.state_since).total_seconds() > SLOW_START_LIMIT_S


def _replica_problem(replica: Replica) -> Problem:
    remedy = "It returns by itself once probes are good."
    if replica.state == State.FAILED and replica.executor == Replica.Executor.AGENT:
        remedy = "Its agent starts it again by itself, after longer and longer rests."
    elif replica.state == State.FAILED:
        remedy = "Start its engine again, then restore it."
    elif replica.state == State.EJECTED and replica.ejected_by_operator:
        remedy = "An operator took it out: restore it when it is fit."
    elif replica.state != State.EJECTED:
        remedy = "Look at the engine's log: it should be up by now."
    return Problem(
        severity=Severity.FAILED if replica.state == State.FAILED else Severity.WARNING,
        what=f"Replica {replica.public_id} of {replica.pool.slug} is {replica.state}",
        why=replica.state_reason,
        remedy=remedy,
        since=replica.state_since,
        target=("replica", replica.public_id),
    )


def agent_problems(plane: Plane, reports: Reports | NoData) -> list[Problem]:
    """Give agents that are silent, or run an older table."""
    newest = plane.publication.epoch
    found = [_agent_problem(a, newest, reports, plane.lags) for a in plane.agents]
    return [p for p in found if p is not None]


def _agent_problem(
    agent: Agent, newest_epoch: int, reports: Reports | NoData, lags: dict[str, float | None]
) -> Problem | None:
    report = None if isinstance(reports, NoData) else reports.get(agent.public_id)
    seen_at = rows.seen(agent, report[1] if report else None)
    status, reason = rows.agent_status(agent, seen_at, newest_epoch)
    if status in {"silent", "never"}:
        return Problem(
            severity=Severity.FAILED,
            what=f"Agent on {agent.node.name} is silent",
            why=reason,
            remedy="Look at its process and at the network between it and here.",
            since=seen_at or agent.registered_at,
            target=("node", agent.node.name),
        )
    if status == "behind" and (lags.get(agent.public_id) or 0) > LATE_LEAST_S / 4:
        return Problem(
            severity=Severity.WARNING,
            what=f"Agent on {agent.node.name} runs an older table",
            why=reason,
            remedy="It pulls by itself; Routing shows what its deliveries say.",
            target=("routing", ""),
        )
    return None


def alert_problems(firing: list[Alert], pools: set[str]) -> list[Problem]:
    """Give the alerts that fire, but for those that have a line of their own here already."""
    return [_alert_problem(a) for a in reliability.own_lines(firing, pools)]


def _alert_problem(alert: Alert) -> Problem:
    rule = BY_NAME.get(alert.rule)
    is_critical = alert.severity == AlertSeverity.CRITICAL
    taken = f"{alert.acknowledged_by} looks after it. " if alert.acknowledged_by else ""
    return Problem(
        severity=Severity.FAILED if is_critical else Severity.WARNING,
        what=f"{rule.title if rule else alert.rule}: {alert.subject}",
        why=alert.reason,
        remedy=taken + (rule.remedy if rule else ""),
        since=alert.fired_at,
        target=("alerts", ""),
    )


def rollout_problems() -> list[Problem]:
    """Give rollouts that wait for a person, and those that were taken back in the last day."""
    return [
        Problem(
            severity=Severity.WARNING,
            what=f"Rollout {row.pk} of {row.model} is {row.phase}",
            why=row.reason,
            remedy=ROLLOUT_REMEDIES[row.phase],
            since=row.finished_at or row.evaluated_at,
            target=("rollout", str(row.pk)),
        )
        for row in rollouts.needing_a_person(timezone.now())
    ]


def scaling_problems() -> list[Problem]:
    """Give pools that need more than they may have, or of which nothing is known."""
    return [
        Problem(
            severity=Severity.WARNING,
            what=f"Pool {row.pool.slug} cannot scale as its load asks",
            why=row.reason,
            remedy="Raise the most it may have, or see to its engines' metrics.",
            since=row.at,
            target=("scaling-pool", row.pool.slug),
        )
        for row in scaling.alarms(timezone.now())
    ]


def publication_problems(publication: Publication) -> list[Problem]:
    """Give a halt of publishing, and rows the compiler had to leave out."""
    found = []
    if publication.halted_reason:
        found.append(
            Problem(
                severity=Severity.FAILED,
                what="Publishing has stopped: changes do not reach the agents",
                why=publication.halted_reason,
                remedy="If this database is the right one: manage.py adopt --reason …",
                since=publication.halted_at,
                target=("routing", ""),
            )
        )
    newest = RoutingEpoch.objects.filter(epoch=publication.epoch).only("left_out", "epoch").first()
    for row in (newest.left_out if newest else [])[:5]:
        found.append(
            Problem(
                severity=Severity.WARNING,
                what=f"{row.get('object', 'A row')} is left out of the routing table",
                why=str(row.get("problem", "")),
                remedy="Correct it; the next table will have it.",
                target=("epoch", str(publication.epoch)),
            )
        )
    return found


def machinery_problems(loops: list[LoopRun], reports: Reports | NoData) -> list[Problem]:
    """Give parts of the control plane that are down or late."""
    found = []
    fault = readiness.broker_fault() or (reports.reason if isinstance(reports, NoData) else "")
    if fault:
        found.append(
            Problem(
                severity=Severity.FAILED,
                what="Redis is down: no live figures, background work waits",
                why=fault,
                remedy="Start Redis. Traffic goes on; changes are stored and delivered later.",
                target=("system", ""),
            )
        )
    late = [_loop_problem(run) for run in loops] if loops else [_no_loop_problem()]
    found += _together([p for p in late if p is not None])
    client = prometheus()
    if client is not None and (missing := client.problem()):
        found.append(
            Problem(
                severity=Severity.WARNING,
                what="Prometheus is missing: charts come from the recent store and roll-ups",
                why=missing,
                remedy="Check PROMETHEUS_URL and the Prometheus server.",
                target=("system", ""),
            )
        )
    return found


def _together(late: list[Problem]) -> list[Problem]:
    """Tell of many late loops in one line: they have one cause."""
    if len(late) <= LOOPS_ONE_BY_ONE:
        return late
    names = ", ".join(p.what.split()[2] for p in late)
    began = [p.since for p in late if p.since is not None]
    what = f"{len(late)} control loops are late"
    return [replace(late[0], what=what, why=f"{names}.", since=min(began, default=None))]


def _no_loop_problem() -> Problem | None:
    """Say that nothing was ever run by beat and worker, once they had time to begin."""
    first = AuditEvent.objects.order_by("id").values_list("at", flat=True).first()
    if first is None or (timezone.now() - first).total_seconds() <= FIRST_RUNS_S:
        return None
    return Problem(
        severity=Severity.WARNING,
        what="No control loop has run yet",
        why="Nothing is published, judged or scaled without them.",
        remedy="Start beat and worker: both must run for loops to run.",
        since=first,
        target=("system", ""),
    )


def lateness_s(run: LoopRun) -> float | None:
    """Give how long a loop has not run beyond what is normal; None when it is in time."""
    age_s = (timezone.now() - run.started_at).total_seconds()
    limit_s = max(LATE_FACTOR * run.interval_s, LATE_LEAST_S)
    return age_s if age_s > limit_s else None


def _loop_problem(run: LoopRun) -> Problem | None:
    if lateness_s(run) is None:
        return None
    return Problem(
        severity=Severity.WARNING,
        what=f"Control loop {run.name} is late",
        why=f"It should run every {run.interval_s:g} s.",
        remedy="Look at beat and worker: both must run for loops to run.",
        since=run.started_at,
        target=("system", ""),
    )
