"""The last five rolled-up minutes of pools, and the same hour of the days before as a baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.domain.throughput import Baseline, Recent, usual
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.models import RollUp, Step
from controlplane.telemetry.rolling import POOL

MINUTES: Final = 5
OLDEST: Final = timedelta(minutes=5)  # a newest minute that ended longer ago tells of the past
DAYS: Final = 7
COVERED_LEAST_S: Final = 1800  # of an hour that may be compared with


# A baseline is of whole hours, so it is read once an hour.
_baselines = FlightCache(max_entries=4, ttl_s=600.0)


def read(pools: Iterable[str], now: datetime) -> dict[str, Recent]:
    """Give the last five rolled-up minutes of pools; without one there is no entry."""
    rows = RollUp.objects.filter(
        level=POOL,
        step_s=Step.MINUTE,
        at__gte=now - OLDEST - timedelta(minutes=MINUTES + 1),
        subject__in=list(pools),
    )
    found: dict[str, dict[datetime, list[Figures]]] = defaultdict(lambda: defaultdict(list))
    for subject, at, body in rows.values_list("subject", "at", "figures"):
        found[subject][at].append(rollups.unpacked(bytes(body)))
    known = baselines(now) if found else {}
    made = {}
    for pool, minutes in found.items():
        newest = sorted(minutes)[-MINUTES:]
        age_s = (now - newest[-1]).total_seconds() - Step.MINUTE
        figures = rollups.over_time(rollups.over_subjects(minutes[at]) for at in newest)
        if age_s <= OLDEST.total_seconds():
            made[pool] = Recent(now=figures, age_s=max(0.0, age_s), baseline=known.get(pool))
    return made


def baselines(now: datetime) -> Mapping[str, Baseline]:
    """Give what was usual at this hour of the last seven days, by pool."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    return _baselines.get(hour, lambda: _read_baselines(hour))


def _read_baselines(hour: datetime) -> dict[str, Baseline]:
    times = [hour - timedelta(days=n) for n in range(1, DAYS + 1)]
    rows = RollUp.objects.filter(level=POOL, step_s=Step.HOUR, at__in=times)
    found: dict[tuple[str, datetime], list[Figures]] = defaultdict(list)
    for subject, at, body in rows.values_list("subject", "at", "figures"):
        found[(subject, at)].append(rollups.unpacked(bytes(body)))
    days: dict[str, list[Figures]] = defaultdict(list)
    for (pool, _), parts in found.items():
        whole = rollups.over_subjects(parts)
        if whole.covered_s >= COVERED_LEAST_S and whole.requests:
            days[pool].append(whole)
    return {pool: usual(parts) for pool, parts in days.items()}
