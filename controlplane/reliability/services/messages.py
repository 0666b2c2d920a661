"""What webhooks are told: written with the change it tells of, sent afterwards until it arrived."""

from __future__ import annotations

import json
import secrets
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.domain.alert_rules import BY_NAME, Severity
from controlplane.domain.alerts import State, silence_of
from controlplane.reliability.models import Alert, Silence, Webhook, WebhookDelivery
from controlplane.wake import waker

FIRING, RESOLVED, TEST = "firing", "resolved", "test"


def queue_due(now: datetime) -> int:
    """Write the messages of alerts that fire and are not silenced, and of told ones that ended.

    By level: an alert whose silence ends while it still fires is told then.
    """
    written = [*_firing(now), *_ended(now)]
    WebhookDelivery.objects.bulk_create(written)
    if written:
        transaction.on_commit(waker("reliability.deliver"))
    return len(written)


def _firing(now: datetime) -> list[WebhookDelivery]:
    silences = list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now))
    firing = Alert.objects.filter(state=State.FIRING, notified_at=None)
    due = [a for a in firing if silence_of(a, silences, now=now) is None]
    Alert.objects.filter(pk__in=[a.pk for a in due]).update(notified_at=now)
    hooks = list(Webhook.objects.filter(enabled=True)) if due else []
    return [_row(h, a, FIRING, now) for a in due for h in hooks if _wants(h, a)]


def _ended(now: datetime) -> list[WebhookDelivery]:
    """Write that alerts are over, to those who were told that they fire."""
    ended = Alert.objects.filter(
        state=State.RESOLVED, notified_at__isnull=False, end_notified_at=None
    )
    due = list(ended)
    Alert.objects.filter(pk__in=[a.pk for a in due]).update(end_notified_at=now)
    told = WebhookDelivery.objects.filter(alert__in=due, event=FIRING, webhook__enabled=True)
    return [
        _row(d.webhook, d.alert, RESOLVED, now) for d in told.select_related("webhook", "alert")
    ]


def queue_test(webhook: Webhook) -> WebhookDelivery:
    """Write a message that says it is a test."""
    now = timezone.now()
    row = _row(webhook, None, TEST, now)
    row.save(force_insert=True)
    transaction.on_commit(waker("reliability.deliver"))
    return row


def _wants(hook: Webhook, alert: Alert) -> bool:
    is_its_pool = not hook.pool or hook.pool == alert.pool
    return is_its_pool and (not hook.only_critical or alert.severity == Severity.CRITICAL)


def _row(webhook: Webhook, alert: Alert | None, event: str, now: datetime) -> WebhookDelivery:
    message_id = f"msg-{secrets.token_hex(12)}"
    body = {"id": message_id, "event": event, "at": now.isoformat(), "alert": _told(alert)}
    return WebhookDelivery(
        webhook=webhook,
        alert=alert,
        event=event,
        message_id=message_id,
        body=json.dumps(body, ensure_ascii=False, sort_keys=True, allow_nan=False),
        next_try_at=now,
    )


def _told(alert: Alert | None) -> dict[str, Any] | None:
    if alert is None:
        return None
    rule = BY_NAME.get(alert.rule)
    return {
        "id": alert.pk,
        "rule": alert.rule,
        "title": rule.title if rule else alert.rule,
        "subject": alert.subject,
        "pool": alert.pool,
        "severity": alert.severity,
        "state": alert.state,
        "since": alert.since.isoformat(),
        "fired_at": alert.fired_at.isoformat() if alert.fired_at else None,
        "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
        "value": alert.value,
        "threshold": alert.threshold,
        "unit": rule.unit if rule else "",
        "reason": alert.reason,
        "remedy": rule.remedy if rule else "",
    }
