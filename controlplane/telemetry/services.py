"""Rolling up: the recent store's minutes into the database, minutes into hours, and forgetting."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import structlog
from django.db import models, transaction

from controlplane.domain import rollups
from controlplane.domain.amounts import counted
from controlplane.domain.rollups import Figures
from controlplane.telemetry import history, recent, rolling, topology
from controlplane.telemetry.models import MemberRollUp, RollUp, RollUpState, Step
from controlplane.telemetry.rolling import Key, Rolled
from controlplane.telemetry.snapshots import NoData

log = structlog.get_logger(__name__)

GRACE_S: Final = 10  # for the last reports of a minute, two seconds apart, and slow ones
RUN_S: Final = 20.0  # a run stops after this long; the next one goes on
HOUR: Final = timedelta(hours=1)
_BATCH: Final = 500
_DELETED_AT_ONCE: Final = 2000  # a short lock each
_Row = TypeVar("_Row", RollUp, MemberRollUp)
_MemberKey = tuple[str, int]  # kind, shard


def roll_up(now: float) -> str:
    """Write every minute that changed and is over, then every hour that is; say what was done.

    Safe to run twice, late, or in two workers at once: a minute is put together again from all that
    is known of it, and counts never fall. What Redis still holds of an outage, up to an hour, is
    made up for; a minute that was late changes its hour as well.
    """
    store = recent.store()
    dirty = store.dirty_minutes()
    if isinstance(dirty, NoData):
        return f"nothing rolled up: {dirty.reason}"
    due = [(m, at) for m, at in dirty.items() if m + Step.MINUTE + GRACE_S <= now]
    shape = topology.now() if due else topology.Topology()
    written, deadline = 0, time.monotonic() + RUN_S
    for minute, changed_at in due:
        found = store.minute(minute)
        if isinstance(found, NoData):
            return f"{written} of {counted(len(due), 'minutes')} rolled up: {found.reason}"
        write_minute(history.moment(minute), rolling.roll(found, shape))
        store.clean(minute, changed_at)
        written += 1
        if time.monotonic() > deadline:
            break
    hours = close_hours(history.moment(now))
    return f"{written} of {counted(len(due), 'minutes')} and {counted(hours, 'hours')} rolled up"


@transaction.atomic
def write_minute(at: datetime, rolled: Rolled) -> None:
    """Keep a minute, beside what is already known of it; a late one changes its hour too."""
    state = _held_state()
    _keep(Step.MINUTE, at, rolled.rows, is_whole=False)
    _keep_members(Step.MINUTE, at, by_shard(rolled), is_whole=False)
    hour = at.replace(minute=0)
    if state.hours_until is not None and hour < state.hours_until:
        write_hour(hour)
    end = at + timedelta(seconds=Step.MINUTE)
    if rolled.rows and (state.minutes_until is None or end > state.minutes_until):
        RollUpState.objects.filter(pk=state.pk).update(minutes_until=end)


def close_hours(now: datetime) -> int:
    """Write the hours that are over and not yet written; say how many."""
    written = 0
    while written < 24 and _close_next_hour(now):
        written += 1
    return written


@transaction.atomic
def _close_next_hour(now: datetime) -> bool:
    state = _held_state()
    minutes = RollUp.objects.filter(step_s=Step.MINUTE).order_by("at")
    if state.hours_until is not None:
        minutes = minutes.filter(at__gte=state.hours_until)
    first = minutes.values_list("at", flat=True).first()
    if first is None:
        return False
    hour = first.replace(minute=0)
    if hour + HOUR + timedelta(seconds=GRACE_S) > now:
        return False
    write_hour(hour)
    RollUpState.objects.filter(pk=state.pk).update(hours_until=hour + HOUR)
    return True


def write_hour(hour: datetime) -> None:
    """Put an hour together from its minutes."""
    rows: dict[Key, list[Figures]] = defaultdict(list)
    minutes = RollUp.objects.filter(step_s=Step.MINUTE, at__gte=hour, at__lt=hour + HOUR)
    columns = minutes.values_list("level", "subject", "version", "figures")
    for *key, body in columns.iterator(chunk_size=_BATCH):
        rows[(key[0], key[1], key[2])].append(rollups.unpacked(bytes(body)))
    summed = {key: rollups.over_time(parts) for key, parts in rows.items()}
    _keep(Step.HOUR, hour, summed, is_whole=True)
    _keep_members(Step.HOUR, hour, _hour_of_members(hour), is_whole=True)


def _hour_of_members(hour: datetime) -> dict[_MemberKey, dict[str, Figures]]:
    parts: dict[_MemberKey, dict[str, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    rows = MemberRollUp.objects.filter(step_s=Step.MINUTE, at__gte=hour, at__lt=hour + HOUR)
    columns = rows.values_list("kind", "shard", "members")
    for kind, shard, body in columns.iterator(chunk_size=_BATCH):
        for name, figures in rollups.unpacked_members(bytes(body)).items():
            parts[(kind, shard)][name].append(figures)
    return {
        key: {name: rollups.over_time(found) for name, found in by_name.items()}
        for key, by_name in parts.items()
    }


def by_shard(rolled: Rolled) -> dict[_MemberKey, dict[str, Figures]]:
    """Sort a minute's replicas and GPUs into shards."""
    shards: dict[_MemberKey, dict[str, Figures]] = defaultdict(dict)
    for replica, figures in rolled.replicas.items():
        shards[(MemberRollUp.Kind.REPLICA, history.shard(replica))][replica] = figures
    for agent, by_index in rolled.gpus.items():
        for index, figures in by_index.items():
            key = (MemberRollUp.Kind.GPU, history.shard(agent))
            shards[key][history.gpu_name(agent, index)] = figures
    return shards


def _held_state() -> RollUpState:
    """Hold the state's row until the transaction ends, so that two workers take turns."""
    RollUpState.objects.get_or_create(pk=1)
    return RollUpState.objects.select_for_update().get(pk=1)


def _keep(step: Step, at: datetime, rows: Mapping[Key, Figures], *, is_whole: bool) -> None:
    old: dict[Key, Figures] = {}
    if not is_whole:
        known = RollUp.objects.filter(step_s=step, at=at)
        for level, subject, version, body in known.values_list(
            "level", "subject", "version", "figures"
        ):
            old[(level, subject, version)] = rollups.unpacked(bytes(body))
    made = []
    for (level, subject, version), new in rows.items():
        before = old.get((level, subject, version))
        figures = rollups.settled(before, new) if before else new
        made.append(
            RollUp(
                level=level,
                subject=subject,
                version=version,
                step_s=step,
                at=at,
                covered_s=figures.covered_s,
                requests=figures.requests,
                failed=figures.failed,
                figures=rollups.packed(figures),
            )
        )
    key = ("level", "subject", "step_s", "at", "version")
    _upsert(RollUp, made, key, ("covered_s", "requests", "failed", "figures"))


def _keep_members(
    step: Step,
    at: datetime,
    shards: Mapping[_MemberKey, Mapping[str, Figures]],
    *,
    is_whole: bool,
) -> None:
    old: dict[_MemberKey, dict[str, Figures]] = {}
    if not is_whole:
        known = MemberRollUp.objects.filter(step_s=step, at=at)
        for kind, shard, body in known.values_list("kind", "shard", "members"):
            old[(kind, shard)] = rollups.unpacked_members(bytes(body))
    made = []
    for (kind, shard), new in shards.items():
        members = dict(old.get((kind, shard), {}))
        for name, figures in new.items():
            before = members.get(name)
            members[name] = rollups.settled(before, figures) if before else figures
        body = rollups.packed(members)
        made.append(MemberRollUp(kind=kind, shard=shard, step_s=step, at=at, members=body))
    _upsert(MemberRollUp, made, ("kind", "shard", "step_s", "at"), ("members",))


def _upsert(
    model: type[_Row], rows: list[_Row], key: Iterable[str], changed: Iterable[str]
) -> None:
    manager: Any = model._default_manager
    manager.bulk_create(
        rows,
        batch_size=_BATCH,
        update_conflicts=True,
        unique_fields=list(key),
        update_fields=list(changed),
    )


def forget(*, minutes_before: datetime, hours_before: datetime) -> int:
    """Delete roll-ups past their retention; say how many rows."""
    deleted = 0
    for step, before in ((Step.MINUTE, minutes_before), (Step.HOUR, hours_before)):
        for model in (RollUp, MemberRollUp):
            rows = model._default_manager.filter(step_s=step, at__lt=before)
            deleted += _delete(rows)
    return deleted


def _delete(found: models.QuerySet[Any]) -> int:
    deleted = 0
    while keys := list(found.values_list("pk", flat=True)[:_DELETED_AT_ONCE]):
        deleted += found.model._default_manager.filter(pk__in=keys).delete()[0]
    return deleted
