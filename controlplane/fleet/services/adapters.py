"""The loop of adapters: places them, notes what agents tell, switches versions, forgets the gone.

Every step compares levels, so a run that is lost, late or doubled changes nothing for the worse.
Silence is no evidence: what no live agent tells stays as it was told last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.catalog import services as catalog
from controlplane.catalog import uploads
from controlplane.catalog.models import AdapterVersion
from controlplane.catalog.selectors import live_adapter_versions
from controlplane.domain.amounts import counted
from controlplane.domain.placement import Holding, Plan, take_over
from controlplane.domain.replica_states import State
from controlplane.fleet import selectors
from controlplane.fleet.models import AdapterPlacement, Replica
from controlplane.telemetry import recent
from controlplane.telemetry.snapshots import NoData
from controlplane.wake import waker
from routing_agent.wire import AdapterStage, AdapterState, Report

log = structlog.get_logger(__name__)
LOOP: Final = Actor("adapters", "loop")
MESSAGE_LENGTH: Final = 500
_GONE: Final = (State.STOPPED, State.FAILED, State.PENDING)
_TOLD_AT_MOST: Final = 100  # entries of an audit event


@dataclass(frozen=True, slots=True)
class _Observed:
    """What live agents tell: states by each replica's own agent, and all that any of them lists."""

    states: Mapping[str, Mapping[str, AdapterState]]  # replica -> served name -> state
    listed: frozenset[str]  # served names that any engine holds, by anybody's word


def reconcile_adapters() -> str:
    """Run the loop once and say what was done."""
    placed = _place()
    observed = _observed()
    said = f"{counted(placed, 'placements')} changed"
    if observed is None:
        return f"{said}; nothing was observed: the recent store is gone"
    _note(observed)
    switched = _switch()
    forgotten = _forget(observed)
    if not (placed or switched or forgotten):
        return f"nothing to do, {counted(len(observed.states), 'replicas')} heard"
    return f"{said}, {counted(switched, 'versions')} switched, {forgotten} forgotten"


def _place() -> int:
    """Write what is to be where as far as it changed; say how many entries that was."""
    if not _difference(selectors.adapter_plan()):
        return 0
    with transaction.atomic():
        record(  # first, because it locks: of two loops the second finds nothing left to do
            actor=LOOP, verb="adapter.place", target=("loop", "adapters"), touches_fleet=True
        )
        changed = _difference(selectors.adapter_plan())
        if not changed:
            transaction.set_rollback(True)
            return 0
        _write(changed)
        transaction.on_commit(waker("routing.publish"))
    log.info("adapters_placed", changes=[list(c) for c in sorted(changed)][:_TOLD_AT_MOST])
    return len(changed)


def _difference(plan: Plan) -> set[tuple[str, str, bool]]:
    """Give (replica, served name, wanted) of all that is not as the plan says.

    Replicas that are being drained keep what they have; those that are gone have nothing.
    """
    draining = set(Replica.objects.filter(state=State.DRAINING).values_list("public_id", flat=True))
    now = {(r, name) for r, names in selectors.adapters_wanted().items() for name in names}
    wanted = {(r, name) for r, names in plan.held.items() for name in names}
    added = {(r, name, True) for r, name in wanted - now}
    removed = {(r, name, False) for r, name in now - wanted if r not in draining}
    return added | removed


def _write(changed: set[tuple[str, str, bool]]) -> None:
    replicas = dict(Replica.objects.values_list("public_id", "pk"))
    versions = {version.served_name: version.pk for version in live_adapter_versions()}
    for replica_id, name, is_wanted in sorted(changed):
        rows = AdapterPlacement.objects.filter(
            replica__public_id=replica_id, version__served_name=name
        )
        if not is_wanted:
            rows.update(wanted=False)
        elif not rows.filter(version=versions[name]).update(wanted=True):
            AdapterPlacement.objects.create(
                replica_id=replicas[replica_id], version_id=versions[name]
            )


def _observed() -> _Observed | None:
    """Gather what agents heard lately tell of adapters; None when it is lost."""
    found = recent.latest_reports()
    if isinstance(found, NoData):
        return None
    fresh = {a: r for a, (r, age_s) in found.items() if age_s <= settings.AGENT_SILENT_AFTER_S}
    owners = dict(
        Replica.objects.filter(node__agent__isnull=False).values_list(
            "public_id", "node__agent__public_id"
        )
    )
    states = {
        told.replica: _states(told.adapters, told.adapter_states)
        for agent, report in fresh.items()
        for told in report.replicas
        if owners.get(told.replica) == agent
    }
    return _Observed(states=states, listed=_listed(fresh))


def _states(listed: tuple[str, ...], told: tuple[AdapterState, ...]) -> dict[str, AdapterState]:
    """Give states by served name; what an engine lists and nobody speaks of is loaded."""
    by_name = {name: AdapterState(served_name=name, state="loaded") for name in listed}
    return by_name | {state.served_name: state for state in told}


def _listed(reports: Mapping[str, Report]) -> frozenset[str]:
    return frozenset(
        name
        for report in reports.values()
        for told in report.replicas
        for name in (*told.adapters, *(state.served_name for state in told.adapter_states))
    )


def _note(observed: _Observed) -> None:
    """Keep what was told of each placement, and drop those that are neither wanted nor there."""
    now = timezone.now()
    heard: list[int] = []
    for row in selectors.placements():
        told = observed.states.get(row.replica.public_id)
        if row.replica.state in _GONE and not row.wanted:
            row.delete()
        elif told is not None:
            heard.append(row.pk)
            _note_one(row, told.get(row.version.served_name), now)
    AdapterPlacement.objects.filter(pk__in=heard).update(heard_at=now)


def _note_one(row: AdapterPlacement, told: AdapterState | None, now: datetime) -> None:
    if told is None and not row.wanted:
        row.delete()
        return
    seen: dict[str, Any] = {"stage": "", "message": "", "attempts": 0}
    if told is not None:
        seen = {
            "stage": told.state,
            "message": told.message[:MESSAGE_LENGTH].replace("\x00", "\ufffd"),
            "attempts": told.attempts,
        }
    news = {name: value for name, value in seen.items() if getattr(row, name) != value}
    if not news:
        return
    if "stage" in news:
        since = now - timedelta(seconds=min(told.for_s, 1e8)) if told else None
        news["stage_since"] = since
        log.info(
            "adapter_stage", replica=row.replica.public_id, adapter=row.version.served_name,
            stage=seen["stage"], message=seen["message"],
        )  # fmt: skip
    AdapterPlacement.objects.filter(pk=row.pk).update(**news)


def _switch() -> int:
    """Let names mean new versions that are loaded; say how many did."""
    now = timezone.now()
    waiting = live_adapter_versions().filter(state=AdapterVersion.State.INCOMING)
    switched = 0
    for version in waiting:
        active = version.adapter.versions.filter(state=AdapterVersion.State.ACTIVE).first()
        verdict = take_over(
            _holdings(version),
            _holdings(active) if active else [],
            waiting_s=(now - version.created_at).total_seconds(),
        )
        if verdict.now:
            switched += catalog.activate_version(
                version_id=version.pk, actor=LOOP, reason=verdict.reason
            )
    return switched


def _holdings(version: AdapterVersion) -> list[Holding]:
    rows = version.placements.filter(wanted=True)
    return [Holding(stage=_stage(row.stage)) for row in rows]


def _stage(text: str) -> AdapterStage | None:
    return text or None  # type: ignore[return-value]  # written from wire.AdapterState alone


def _forget(observed: _Observed) -> int:
    """Remove versions that mean nothing any more and that no engine holds; say how many."""
    live = live_adapter_versions().values("pk")
    over = AdapterVersion.objects.filter(removed_at__isnull=True).exclude(pk__in=live)
    gone = [
        version
        for version in over.filter(placements__isnull=True)
        if version.served_name not in observed.listed
    ]
    for version in gone:
        catalog.forget_version(
            version_id=version.pk, actor=LOOP, reason="no agent tells of it any more"
        )
    uploads.forget_leftovers()
    return len(gone)
