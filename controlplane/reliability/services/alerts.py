"""Judging alerts: every ten seconds each rule sees each of its subjects.

Safe to run twice, late, or in two workers at once: whoever judges holds one row, and what becomes
of an alert follows from what is seen and what is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain import alerts as domain
from controlplane.domain.alert_rules import RULES, Rule
from controlplane.domain.alerts import Reading, State, Tracked
from controlplane.domain.amounts import counted as in_words
from controlplane.domain.errors import Conflict, NotFound
from controlplane.reliability.models import Alert, AlertRun
from controlplane.reliability.selectors import readings
from controlplane.reliability.services import messages

log = structlog.get_logger(__name__)
LOOP: Final = Actor("alerts", "loop")
KEPT: Final = timedelta(days=30)
_TRACKED: Final = tuple(f for f in Tracked.__dataclass_fields__)
_REASONS_TOLD: Final = 3


def judge_alerts(now: datetime) -> str:
    """Look at everything, judge every rule, tell webhooks what changed; say how it stands."""
    seen = readings.readings(readings.look(now))
    with transaction.atomic():
        run = _held_run()
        open_alerts = {(a.rule, a.subject): a for a in _open()}
        told = {rule.name: _judge_rule(rule, seen[rule.name], open_alerts, now) for rule in RULES}
        messages.queue_due(now)
        AlertRun.objects.filter(pk=run.pk).update(at=now, rules=told)
    Alert.objects.filter(state=State.RESOLVED, resolved_at__lt=now - KEPT).delete()
    counted = Counter(_open().values_list("state", flat=True))
    return f"{in_words(counted[State.FIRING], 'alerts')} firing, {counted[State.PENDING]} pending"


def acknowledge_alert(*, pk: int, actor: Actor, reason: str) -> Alert:
    """Note that somebody looks after an alert; it goes on firing until its cause is gone."""
    with transaction.atomic():
        alert = Alert.objects.filter(pk=pk).first()
        if alert is None:
            raise NotFound(f"There is no alert {pk}.")
        if alert.state != State.FIRING:
            raise Conflict(f"This alert is {alert.state}: there is nothing to acknowledge.")
        before = {"acknowledged_by": alert.acknowledged_by, "note": alert.note}
        alert.acknowledged_by, alert.acknowledged_at = actor.name, timezone.now()
        alert.note = reason[:500]
        alert.save(update_fields=["acknowledged_by", "acknowledged_at", "note"])
        record(
            actor=actor,
            verb="alert.acknowledge",
            target=("alert", f"{alert.rule} {alert.subject}"),
            reason=reason,
            change=(before, {"acknowledged_by": actor.name, "note": alert.note}),
        )
    return alert


def _held_run() -> AlertRun:
    AlertRun.objects.get_or_create(pk=1)
    return AlertRun.objects.select_for_update().get(pk=1)


def _open() -> Any:
    return Alert.objects.exclude(state=State.RESOLVED)


def _judge_rule(
    rule: Rule, seen: Iterable[Reading], known: dict[tuple[str, str], Alert], now: datetime
) -> dict[str, Any]:
    """Judge one rule on all its subjects, those that are gone too; say how many are what."""
    counts: Counter[str] = Counter(ok=0, pending=0, firing=0, no_data=0)
    missing: Counter[str] = Counter()
    met = set()
    for reading in seen:
        met.add(reading.subject)
        alert = known.get((rule.name, reading.subject))
        after = domain.judge(rule, reading, tracked(alert) if alert else None, now=now)
        _store(rule, reading, alert, after)
        if reading.value is None:
            counts["no_data"] += 1
            missing[reading.missing] += 1
        else:
            counts["ok" if after is None or after.state is State.RESOLVED else after.state] += 1
    for (name, subject), alert in known.items():
        if name == rule.name and subject not in met:
            _end(alert, now)
    return {**counts, "missing": dict(missing.most_common(_REASONS_TOLD))}


def tracked(alert: Alert) -> Tracked:
    """Give what is stored of an alert as decisions take it."""
    values = {name: getattr(alert, name) for name in _TRACKED}
    return Tracked(**values | {"state": State(alert.state)})


def _store(rule: Rule, reading: Reading, alert: Alert | None, after: Tracked | None) -> None:
    if after is None:
        return
    if alert is None:
        fresh = Alert(rule=rule.name, subject=reading.subject, pool=reading.pool)
        fresh.severity = rule.severity
        _write(fresh, after)
        return
    if after.state is State.RESOLVED and after.fired_at is None:
        alert.delete()  # it was pending only: nobody was told
        return
    if tracked(alert) != after:
        _write(alert, after)


def _write(alert: Alert, after: Tracked) -> None:
    before = alert.state
    for name in _TRACKED:
        setattr(alert, name, getattr(after, name))
    alert.reason = after.reason[:500]
    # Not the whole row: who acknowledged it meanwhile stays.
    alert.save(update_fields=None if alert.pk is None else _TRACKED)
    if before != after.state and after.state is not State.PENDING:
        log.info("alert_moved", rule=alert.rule, subject=alert.subject, to=after.state)
        record(
            actor=LOOP,
            verb=f"alert.{'fire' if after.state is State.FIRING else 'resolve'}",
            target=("alert", f"{alert.rule} {alert.subject}"),
            reason=alert.reason,
        )


def _end(alert: Alert, now: datetime) -> None:
    """End the alert of a subject that is no longer there."""
    if alert.fired_at is None:
        alert.delete()
        return
    gone = f"{alert.reason} Ended: its subject is no longer there."
    after = replace(tracked(alert), state=State.RESOLVED, resolved_at=now, reason=gone)
    _write(alert, after)
