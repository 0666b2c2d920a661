"""What pools promise and how they keep it: the same two queries for one pool or all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from controlplane.domain import slos
from controlplane.domain.errors import NotFound
from controlplane.domain.slos import Budget, Objectives, Standing, Tally
from controlplane.fleet.models import Pool
from controlplane.reliability.models import BudgetState, BudgetStep, MaintenanceWindow, Slo
from controlplane.telemetry.models import Step

SUMMED: Final = tuple(f for f in Tally.__dataclass_fields__)
# A long and a short window each: the short one ends the alarm soon after the cause. The windows and
# rates are those of Google's SRE workbook, chapter "Alerting on SLOs", table of recommended values.
BURN_WINDOWS: Final = {"5m": 300, "30m": 1800, "1h": 3600, "6h": 21600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One pool's promises, and how it stands with them."""

    pool: str
    objectives: Objectives
    is_default: bool
    owner: str
    review_on: date | None
    version: int  # 0: never changed
    budget: Budget
    standings: tuple[Standing, ...]
    burn_rates: dict[str, float | None]  # by window
    booked_until: datetime | None  # budgets know what happened before

    @property
    def burn_rate(self) -> float | None:
        """Give how many times too fast the last hour spent the budget; None without data."""
        return self.burn_rates.get("1h")

    @property
    def needs_review(self) -> bool:
        """Say whether the day of the next review has come."""
        return self.review_on is not None and self.review_on <= timezone.now().date()


def promises(pools: Iterable[str] | None = None) -> list[Promise]:
    """Give the promises of all pools or of those named, the least budget left first."""
    rows = Pool.objects.select_related("slo").order_by("slug")
    if pools is not None:
        rows = rows.filter(slug__in=list(pools))
    found = list(rows)
    now = timezone.now()
    state = BudgetState.objects.first()
    until = state.booked_until if state else None
    names = [p.slug for p in found]
    spent, burns = _spent(names, now), _burns(names, until)
    made = [_promise(p, spent.get(p.slug, Tally()), burns.get(p.slug, {}), until) for p in found]
    return sorted(made, key=lambda p: (-p.budget.spent_ratio, p.pool))


def promise(pool: str) -> Promise:
    """Give one pool's promises, or raise NotFound."""
    found = promises([pool])
    if not found:
        raise NotFound(f"There is no pool {pool!r}.")
    return found[0]


def budget_freeze(pool: str) -> str | None:
    """Say in words why risky changes of a pool (by slug) are frozen; None when they are not."""
    return frozen(promise(pool))


def frozen(promise: Promise) -> str | None:
    """Say why risky changes are frozen, of a promise that was read."""
    return slos.freeze(promise.budget)


def objectives_of(pool: Pool) -> Objectives:
    """Give what a pool promises: its own word, else the defaults."""
    row = slo_of(pool)
    if row is None:
        return slos.DEFAULTS
    return Objectives(
        availability_ratio=row.availability_ratio,
        ttft_p99_s=row.ttft_p99_s,
        tpot_p99_s=row.tpot_p99_s,
        error_ratio=row.error_ratio,
    )


def slo_of(pool: Pool) -> Slo | None:
    """Give a pool's own promises if it ever was given some."""
    return getattr(pool, "slo", None)


def windows(*, since: datetime | None = None) -> QuerySet[MaintenanceWindow]:
    """Give maintenance windows, newest first; with `since` those that end after it."""
    rows = MaintenanceWindow.objects.select_related("pool")
    return rows if since is None else rows.filter(ends_at__gt=since)


def _promise(
    pool: Pool, spent: Tally, burns: dict[str, float | None], until: datetime | None
) -> Promise:
    row = slo_of(pool)
    objectives = objectives_of(pool)
    return Promise(
        pool=pool.slug,
        objectives=objectives,
        is_default=row is None or objectives == slos.DEFAULTS,
        owner=(row.owner if row else "") or pool.owner,
        review_on=row.review_on if row else None,
        version=row.version if row else 0,
        budget=slos.budget(objectives, spent, now=timezone.now()),
        standings=slos.standings(objectives, spent, now=timezone.now()),
        burn_rates={
            name: None
            if (bad_s := burns.get(name)) is None
            else slos.burn_rate(objectives, bad_s=bad_s, window_s=length_s)
            for name, length_s in BURN_WINDOWS.items()
        },
        booked_until=until,
    )


def _spent(pools: list[str], now: datetime) -> dict[str, Tally]:
    begin, end = slos.month(now)
    rows = BudgetStep.objects.filter(
        pool__in=pools, step_s=Step.HOUR, at__gte=begin, at__lt=end
    ).values("pool")
    sums: Any = rows.annotate(**{f"sum_{name}": Sum(name) for name in SUMMED}).order_by()
    return {
        row["pool"]: Tally(**{name: row[f"sum_{name}"] or 0 for name in SUMMED}) for row in sums
    }


def _burns(pools: list[str], until: datetime | None) -> dict[str, dict[str, float | None]]:
    """Give the seconds of each window that went wrong, by pool; None: nothing was reported."""
    if until is None:
        return {}
    longest = max(BURN_WINDOWS.values())
    rows = BudgetStep.objects.filter(
        pool__in=pools, step_s=Step.MINUTE, at__gte=until - timedelta(seconds=longest)
    ).values("pool")
    sums = {}
    for name, length_s in BURN_WINDOWS.items():
        recent = Q(at__gte=until - timedelta(seconds=length_s))
        sums[f"bad_{name}"] = Sum("bad_s", filter=recent)
        sums[f"covered_{name}"] = Sum("covered_s", filter=recent)
    summed: Any = rows.annotate(**sums).order_by()
    return {
        row["pool"]: {
            name: row[f"bad_{name}"] or 0.0 if row[f"covered_{name}"] else None
            for name in BURN_WINDOWS
        }
        for row in summed
    }
