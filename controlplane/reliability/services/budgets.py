"""Booking what was spent of error budgets, from minute roll-ups, beside maintenance windows.

Safe to run twice, late, or in two workers at once: a step is written as a whole, from all that is
known of it. A minute that changed after it was booked (an agent made up for an outage) is booked
again; hours are sums of their minutes and outlive them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Sum

from controlplane.domain import rollups, slos
from controlplane.domain.amounts import counted
from controlplane.domain.slos import Objectives, Tally
from controlplane.fleet.models import Pool
from controlplane.reliability.models import BudgetState, BudgetStep, MaintenanceWindow
from controlplane.reliability.selectors.slos import SUMMED, objectives_of
from controlplane.telemetry.models import RollUp, Step
from controlplane.telemetry.rolling import POOL

LATE: Final = timedelta(minutes=70)  # an agent may make up for an hour, and the roll-up for a run
MINUTES_KEPT: Final = timedelta(hours=47)  # roll-ups keep 48
HOURS_KEPT: Final = timedelta(days=396)
HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
# Minutes of pools a run: near 8 s. After a first start or an outage the next runs go on.
AT_ONCE: Final = 10_000
_COLUMNS: Final = ("source_requests", *SUMMED)
Key = tuple[str, datetime]
Windows = list[tuple[str | None, datetime, datetime]]  # pool (None: all), begin, end


def book_budgets(now: datetime) -> str:
    """Book what was rolled up since the last run, and say how much that was."""
    with transaction.atomic():
        state = _held_state()
        if state.booked_until is None:
            begin = (now - MINUTES_KEPT).replace(minute=0, second=0, microsecond=0) + HOUR
            _book_old_hours(slos.month(now)[0], begin)
        else:
            begin = max(min(state.booked_until, now) - LATE, now - MINUTES_KEPT)
        changed = sorted(_changed_minutes(begin), key=lambda key: (key[1], key[0]))
        booked = _book(set(changed[:AT_ONCE]))
        until = _newest_minute() if len(changed) <= AT_ONCE else changed[AT_ONCE - 1][1]
        if until is not None:
            BudgetState.objects.filter(pk=state.pk).update(booked_until=until + MINUTE)
    _forget(now)
    left = len(changed) - booked
    return f"{counted(booked, 'minutes')} of pools booked" + (
        f", {left} left for the next run" if left else ""
    )


def _newest_minute() -> datetime | None:
    rows = RollUp.objects.filter(level=POOL, step_s=Step.MINUTE)
    return rows.order_by("-at").values_list("at", flat=True).first()


@transaction.atomic
def book_again(pool: Pool | None, begin: datetime, end: datetime, now: datetime) -> int:
    """Book the minutes of a stretch anew, after what counts there has changed."""
    _held_state()
    rows = RollUp.objects.filter(level=POOL, step_s=Step.MINUTE)
    rows = rows.filter(at__gt=max(begin, now - MINUTES_KEPT) - MINUTE, at__lt=end)
    if pool is not None:
        rows = rows.filter(subject=pool.slug)
    return _book({(subject, at) for subject, at in rows.values_list("subject", "at")})


def _held_state() -> BudgetState:
    BudgetState.objects.get_or_create(pk=1)
    return BudgetState.objects.select_for_update().get(pk=1)


def _changed_minutes(begin: datetime) -> set[Key]:
    """Give the minutes whose roll-up is not what was booked of it."""
    rows = RollUp.objects.filter(level=POOL, step_s=Step.MINUTE, at__gte=begin)
    told = rows.values("subject", "at").annotate(total=Sum("requests"), covered=Sum("covered_s"))
    steps = BudgetStep.objects.filter(step_s=Step.MINUTE, at__gte=begin)
    booked = {
        (pool, at): (requests, covered + excluded)
        for pool, at, requests, covered, excluded in steps.values_list(
            "pool", "at", "source_requests", "covered_s", "excluded_s"
        )
    }
    return {
        (r["subject"], r["at"])
        for r in told.order_by()
        if not _is_booked(booked.get((r["subject"], r["at"])), r["total"], r["covered"])
    }


def _is_booked(step: tuple[int, float] | None, requests: int, covered: int) -> bool:
    # Versions of a pool have rows of their own, so coverage is compared only where it grew.
    return step is not None and step[0] == requests and (requests > 0 or step[1] >= covered)


def _book(minutes: set[Key]) -> int:
    if not minutes:
        return 0
    objectives = {p.slug: objectives_of(p) for p in Pool.objects.select_related("slo")}
    first = min(at for _, at in minutes)
    open_windows = _windows(first, max(at for _, at in minutes) + MINUTE)
    made = [
        _step(pool, at, Step.MINUTE, figures, objectives.get(pool, slos.DEFAULTS), open_windows)
        for (pool, at), figures in _figures(minutes).items()
    ]
    _write(made)
    _sum_hours({(pool, at.replace(minute=0)) for pool, at in minutes})
    return len(made)


def _figures(minutes: set[Key]) -> dict[Key, rollups.Figures]:
    times = [at for _, at in minutes]
    rows = RollUp.objects.filter(
        level=POOL, step_s=Step.MINUTE, at__gte=min(times), at__lte=max(times)
    )
    found: dict[Key, list[rollups.Figures]] = defaultdict(list)
    columns = rows.values_list("subject", "at", "figures")
    for subject, at, body in columns.iterator(chunk_size=500):
        if (subject, at) in minutes:
            found[(subject, at)].append(rollups.unpacked(bytes(body)))
    return {key: rollups.over_subjects(parts) for key, parts in found.items()}


def _step(
    pool: str,
    at: datetime,
    step: Step,
    figures: rollups.Figures,
    objectives: Objectives,
    open_windows: Windows,
) -> BudgetStep:
    end = at + timedelta(seconds=step)
    is_excluded = any(
        (name is None or name == pool) and begin < end and at < until
        for name, begin, until in open_windows
    )
    counted = slos.tally(figures, objectives)
    if is_excluded:
        counted = Tally(excluded_s=counted.covered_s)
    return BudgetStep(
        pool=pool, step_s=step, at=at, source_requests=figures.requests, **asdict(counted)
    )


def _windows(begin: datetime, end: datetime) -> Windows:
    rows = MaintenanceWindow.objects.filter(starts_at__lt=end, ends_at__gt=begin)
    return list(rows.values_list("pool__slug", "starts_at", "ends_at"))


def _sum_hours(hours: set[Key]) -> None:
    """Put hours together from their minutes; what was booked of an hour never shrinks by that."""
    made = []
    for pool, at in hours:
        rows = BudgetStep.objects.filter(
            pool=pool, step_s=Step.MINUTE, at__gte=at, at__lt=at + HOUR
        )
        sums = rows.aggregate(**{f"sum_{name}": Sum(name) for name in _COLUMNS})
        values = {name: sums[f"sum_{name}"] or 0 for name in _COLUMNS}
        made.append(BudgetStep(pool=pool, step_s=Step.HOUR, at=at, **values))
    _write(made)


def _book_old_hours(begin: datetime, end: datetime) -> None:
    """Book the month's hours whose minutes are gone, from their roll-ups: the first run only."""
    rows = RollUp.objects.filter(level=POOL, step_s=Step.HOUR, at__gte=begin, at__lt=end)
    found: dict[Key, list[rollups.Figures]] = defaultdict(list)
    for subject, at, body in rows.values_list("subject", "at", "figures").iterator():
        found[(subject, at)].append(rollups.unpacked(bytes(body)))
    _write(
        _step(pool, at, Step.HOUR, rollups.over_subjects(parts), slos.DEFAULTS, [])
        for (pool, at), parts in found.items()
    )


def _write(steps: Iterable[BudgetStep]) -> None:
    BudgetStep.objects.bulk_create(
        list(steps),
        batch_size=500,
        update_conflicts=True,
        unique_fields=["pool", "step_s", "at"],
        update_fields=list(_COLUMNS),
    )


def _forget(now: datetime) -> None:
    for step, kept in ((Step.MINUTE, MINUTES_KEPT + HOUR), (Step.HOUR, HOURS_KEPT)):
        BudgetStep.objects.filter(step_s=step, at__lt=now - kept).delete()
