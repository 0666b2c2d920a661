"""Evidence for a diagnosis: a pool's last minutes beside the hour before its trouble began."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain import diagnosis as domain
from controlplane.domain import rollups
from controlplane.domain.diagnosis_steps import Diagnosis, Evidence
from controlplane.domain.errors import Invalid
from controlplane.domain.rollups import Figures
from controlplane.fleet import rows
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Pool, Replica
from controlplane.reliability.models import Alert
from controlplane.reliability.selectors import throughput
from controlplane.reliability.selectors.alerts import alert as alert_of
from controlplane.reliability.selectors.slos import objectives_of
from controlplane.telemetry import live, recent, rolling
from controlplane.telemetry.models import RollUp, Step
from controlplane.telemetry.rolling import POOL
from controlplane.telemetry.snapshots import NoData

MINUTES_NOW: Final = 5
BEFORE: Final = timedelta(hours=1)
GAP: Final = timedelta(minutes=5)  # trouble begins before an alert sees it
COVERED_LEAST_S: Final = 300  # of a baseline
CHANGES_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A diagnosis, what its two columns are, and what changed meanwhile."""

    pool: str
    diagnosis: Diagnosis
    alert: Alert | None
    since: datetime
    now_is: str
    before_is: str
    missing: str  # why there is no figure of now, if there is none
    changes: list[AuditEvent]
    at: datetime


def diagnose(pool: str, question: str, alert_id: int | None = None) -> Finding:
    """Look at a pool and answer a question; with an alert, from when that began.

    Raises:
        NotFound: no such pool or alert.
        Invalid: another question, or an alert of another pool.
    """
    if question not in domain.TITLES:
        raise Invalid(f"question is one of {', '.join(domain.TITLES)}.", field="question")
    row = fleet.pool(pool)
    alert = alert_of(alert_id) if alert_id is not None else None
    if alert is not None and alert.pool != pool:
        raise Invalid(f"Alert {alert_id} is not of pool {pool!r}.", field="alert")
    now = timezone.now()
    since = alert.since if alert else now
    before, before_is = _before(pool, since)
    figures, members, missing = _now(pool)
    seen = _evidence(row, figures, members, before, now)
    return Finding(
        pool=pool,
        diagnosis=domain.diagnose(question, seen),
        alert=alert,
        since=since,
        now_is=f"the last {MINUTES_NOW} minutes",
        before_is=before_is,
        missing=missing,
        changes=_changes(pool, since),
        at=now,
    )


def _now(pool: str) -> tuple[Figures | None, dict[str, Figures], str]:
    found = recent.store().pool_minutes([pool], time.time(), MINUTES_NOW)
    if isinstance(found, NoData):
        return None, {}, found.reason
    steps = [s for s in found[pool] if s]
    if not steps:
        return None, {}, "No agent reported this pool in the last five minutes."
    names = {name for s in steps for name in s.replicas}
    members = {
        name: rollups.over_time(
            rolling.replica_figures(s.replicas[name], rolling.covered_s(s))
            for s in steps
            if name in s.replicas
        )
        for name in names
    }
    return rollups.over_time(rolling.pool_figures(s) for s in steps), members, ""


def _before(pool: str, since: datetime) -> tuple[Figures | None, str]:
    """Give the hour before trouble began, else the same hour of the day before."""
    end = since - GAP
    found = _summed(pool, Step.MINUTE, end - BEFORE, end)
    if found is not None and found.covered_s >= COVERED_LEAST_S:
        return found, f"the hour before {end:%H:%M} UTC ({found.covered_s // 60} min known)"
    hour = since.replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    found = _summed(pool, Step.HOUR, hour, hour + BEFORE)
    if found is not None:
        return found, f"the same hour of the day before ({hour:%Y-%m-%d %H:%M} UTC)"
    return None, f"nothing is known of the hour before {end:%H:%M} UTC, nor of the day before"


def _summed(pool: str, step: Step, begin: datetime, end: datetime) -> Figures | None:
    found = RollUp.objects.filter(level=POOL, subject=pool, step_s=step, at__gte=begin, at__lt=end)
    minutes: dict[datetime, list[Figures]] = {}
    for at, body in found.values_list("at", "figures"):
        minutes.setdefault(at, []).append(rollups.unpacked(bytes(body)))
    if not minutes:
        return None
    return rollups.over_time(rollups.over_subjects(parts) for parts in minutes.values())


def _evidence(
    pool: Pool,
    now: Figures | None,
    members: dict[str, Figures],
    before: Figures | None,
    at: datetime,
) -> Evidence:
    counts = rows.counts_of(pool)
    engines = _engines(pool)
    long = throughput.read([pool.slug], at).get(pool.slug)
    return Evidence(
        now=now,
        before=before,
        replicas=members,
        ready=counts.ready,
        live=counts.live - counts.draining,
        tpot_promised_s=objectives_of(pool).tpot_p99_s,
        utilization=rollups.utilization_mean(long.now) if long else None,
        context_tokens=pool.model_version.context_tokens,
        kv_dtype=pool.model_version.kv_dtype,
        **engines,
    )


def _engines(pool: Pool) -> dict[str, Any]:
    """Give what the pool's engines say of their room: the smallest of each."""
    reports = rows.reports()
    if isinstance(reports, NoData):
        return {}
    told = [r for report, _ in reports.values() for r in report.replicas if r.pool == pool.slug]
    now = live.replicas(reports)
    return {
        "kv_usage_max": live.kv_usage_max(now[r.replica] for r in told),
        "kv_capacity_tokens": min(
            (r.kv_capacity_tokens for r in told if r.kv_capacity_tokens), default=None
        ),
        "max_running": min(
            (r.engine_max_running for r in told if r.engine_max_running), default=None
        ),
    }


def _changes(pool: str, since: datetime) -> list[AuditEvent]:
    members = Replica.objects.filter(pool__slug=pool).values_list("public_id", flat=True)
    found = AuditEvent.objects.filter(target__in=[pool, *members], at__gte=since - BEFORE)
    return list(found.order_by("-id")[:CHANGES_SHOWN])
