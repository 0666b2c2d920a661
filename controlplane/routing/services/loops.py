"""The control loops of routing. Safe twice, late, out of order, and in two workers at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.text import Truncator

from controlplane.audit.services import Actor, record
from controlplane.domain.amounts import counted
from controlplane.domain.deliveries import is_due
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.happenings import LOOP_RESUMED
from controlplane.domain.replica_states import State
from controlplane.domain.replicas import ReplicaView, Sighting, next_move
from controlplane.fleet.models import Replica
from controlplane.fleet.services import move_replica
from controlplane.routing import selectors
from controlplane.routing.models import Delivery, LoopRun, RoutingEpoch
from controlplane.routing.services.publishing import publish_if_behind
from controlplane.telemetry import recent
from controlplane.telemetry.snapshots import NoData
from controlplane.wake import wake
from routing_agent import wire

log = structlog.get_logger(__name__)
LOOP = Actor("reconcile", "loop")
INTERVAL_S = 5.0
STOOD_STILL_INTERVALS = 3  # a loop that did not run for longer has stood still

_MOVING = [State.LOADING, State.WARMING, State.READY, State.EJECTED, State.DRAINING]
_NOT_RETRIED = {Delivery.Outcome.REFUSED, Delivery.Outcome.INVALID}


def sweep() -> str:
    """Publish what is due, bring agents that are behind up to date, and say what was done."""
    return _logged_run("routing.sweep", _sweep)


def reconcile_replicas() -> str:
    """Move each replica on by what live agents report of it, and say what was done."""
    return _logged_run("routing.reconcile", _reconcile)


def _logged_run(name: str, run: Callable[[], str]) -> str:
    """Run a loop's body and keep when it ran, how long it took and what it said."""
    started = time.monotonic()
    note_begin(name, INTERVAL_S)
    outcome = "failed"
    try:
        outcome = run()
    except Exception as error:
        outcome = f"failed: {type(error).__name__}: {error}"
        raise
    finally:
        note_end(name, time.monotonic() - started, outcome)
    return outcome


def note_begin(name: str, interval_s: float) -> None:
    """Keep that a loop runs now; of a loop that stood still, record once from when to when."""
    now = timezone.now()
    fresh = {"started_at": now, "interval_s": interval_s}
    before, is_new = LoopRun.objects.get_or_create(name=name, defaults=fresh)
    if is_new:
        return
    with transaction.atomic():
        rows = LoopRun.objects.filter(name=name, started_at=before.started_at)
        is_first = rows.update(**fresh)  # of two workers at once one sees the old time
        stood_still_s = (now - before.started_at).total_seconds()
        if is_first and stood_still_s > STOOD_STILL_INTERVALS * interval_s:
            record(
                actor=Actor(name, "loop"),
                verb=LOOP_RESUMED,
                target=("loop", name),
                reason=f"stood still for {stood_still_s:.0f} s, runs every {interval_s:g} s",
                change=({}, {"from": before.started_at.isoformat(), "to": now.isoformat()}),
            )


def note_end(name: str, duration_s: float, outcome: str) -> None:
    """Keep how a run ended."""
    LoopRun.objects.filter(name=name).update(
        finished_at=timezone.now(), duration_s=duration_s, outcome=Truncator(outcome).chars(200)
    )


def _sweep() -> str:
    published = publish_if_behind()
    current = selectors.publication()
    if current.halted_reason:
        return f"halted: {current.halted_reason}"
    pushed = [pk for pk in _agents_due(current.epoch) if wake("routing.deliver", pk, current.epoch)]
    said = f"published epoch {published}" if published else f"epoch {current.epoch} is up to date"
    return f"{said}; pushed to {counted(len(pushed), 'agents')} behind" if pushed else said


def _agents_due(epoch: int) -> list[int]:
    now = timezone.now()
    deliveries = {d.agent_id: d for d in Delivery.objects.filter(epoch__epoch=epoch)}
    due = []
    for agent in selectors.agents_behind():
        delivery = deliveries.get(agent.pk)
        if delivery is not None and delivery.outcome in _NOT_RETRIED:
            continue
        if is_due(
            attempts=delivery.attempts if delivery else 0,
            first_tried_at=delivery.first_tried_at if delivery else None,
            is_live=selectors.is_live(agent, now=now),
            now=now,
        ):
            due.append(agent.pk)
    return due


def _reconcile() -> str:
    now = timezone.now()
    witnesses = _witnesses(now)
    moved = 0
    for replica in Replica.objects.filter(state__in=_MOVING):
        reports = [_sighting(replica.public_id, *witness) for witness in witnesses]
        moved += _move_as_far_as_known(replica, reports, now)
        _note_engine_version(replica, reports)
    heard = counted(len(witnesses), "agents") + " heard"
    return f"{counted(moved, 'replicas')} moved on, {heard}" if moved else f"nothing to do, {heard}"


_Witness = tuple[str, int, dict[str, wire.ReplicaReport]]  # agent, covered revision, its reports


def _witnesses(now: datetime) -> list[_Witness]:
    """Give each live agent's newest word; one whose word is lost or old testifies to nothing."""
    found = recent.latest_reports()
    latest = {} if isinstance(found, NoData) else found
    fresh = {a: r for a, (r, age_s) in latest.items() if age_s <= settings.AGENT_SILENT_AFTER_S}
    revisions = _revisions_covered(fresh.values())
    witnesses: list[_Witness] = []
    for agent in selectors.live_agents(now=now):
        report = fresh.get(agent.public_id)
        revision = revisions.get((report.epoch, report.digest), 0) if report else 0
        by_replica = {r.replica: r for r in report.replicas} if report else {}
        witnesses.append((agent.node.name, revision, by_replica))
    return witnesses


def _revisions_covered(reports: Iterable[wire.Report]) -> dict[tuple[int, str], int]:
    lineage = selectors.publication().lineage
    epochs = {report.epoch for report in reports if report.lineage == lineage}
    rows = RoutingEpoch.objects.filter(epoch__in=epochs)
    return {(row.epoch, row.digest): row.fleet_revision for row in rows.defer("table")}


def _sighting(
    replica_id: str, agent: str, revision: int, reports: dict[str, wire.ReplicaReport]
) -> Sighting:
    return Sighting(agent=agent, revision=revision, report=reports.get(replica_id))


def _move_as_far_as_known(replica: Replica, sightings: list[Sighting], now: datetime) -> bool:
    """Move a replica on; one that is healthy and warm goes from loading to ready at once."""
    is_moved = False
    while _move(replica, sightings, now):
        is_moved = True
        replica.refresh_from_db()
        if replica.state != State.WARMING:
            break
    return is_moved


def _move(replica: Replica, sightings: list[Sighting], now: datetime) -> bool:
    view = ReplicaView(
        replica=replica.public_id,
        state=State(replica.state),
        ejected_by_operator=replica.ejected_by_operator,
        is_spare=replica.is_spare,
        drain_revision=replica.drain_revision,
        drain_deadline_at=replica.drain_deadline_at,
    )
    move = next_move(view, sightings, now=now)
    if move is None:
        return False
    try:
        move_replica(
            replica_id=replica.public_id,
            event=move.event,
            actor=LOOP,
            reason=move.reason,
            expected_version=replica.version,
        )
    except (Conflict, NotFound) as error:  # an operator or the other worker was quicker
        log.info("replica_moved_meanwhile", replica=replica.public_id, why=error.message)
        return False
    log.info("replica_moved", replica=replica.public_id, on=move.event, reason=move.reason)
    return True


def _note_engine_version(replica: Replica, sightings: list[Sighting]) -> None:
    told = {s.report.engine_version for s in sightings if s.report and s.report.engine_version}
    if told and replica.engine_version[:60] not in {version[:60] for version in told}:
        Replica.objects.filter(pk=replica.pk).update(engine_version=min(told)[:60])
