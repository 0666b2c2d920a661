"""Bringing messages to webhooks: again with a growing pause until they arrive, or given up."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

import structlog
from django.utils import timezone

from controlplane.domain.alerts import next_try_s
from controlplane.domain.amounts import counted
from controlplane.reliability import outbound
from controlplane.reliability.models import WebhookDelivery

log = structlog.get_logger(__name__)
RUN_S: Final = 20.0  # a run stops after this long; the next one goes on
CLAIM: Final = timedelta(seconds=60)  # a worker that died with a message: tried again after this
KEPT: Final = timedelta(days=14)


def deliver_messages() -> str:
    """Send what is due; safe in two workers at once, since each message is claimed first."""
    deadline = time.monotonic() + RUN_S
    arrived = failed = 0
    rows = WebhookDelivery.objects.select_related("webhook").order_by("next_try_at", "id")
    for row in rows.filter(outcome="waiting", next_try_at__lte=timezone.now())[:100]:
        if time.monotonic() > deadline:
            break
        if not _claim(row):
            continue
        if _try(row):
            arrived += 1
        else:
            failed += 1
    WebhookDelivery.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return f"{counted(arrived, 'messages')} delivered, {counted(failed, 'attempts')} failed"


def _claim(row: WebhookDelivery) -> bool:
    """Take a message for this worker; the number of attempts says who was first."""
    mine = WebhookDelivery.objects.filter(
        pk=row.pk, attempts=row.attempts, outcome=WebhookDelivery.Outcome.WAITING
    )
    row.attempts += 1
    return bool(mine.update(attempts=row.attempts, next_try_at=timezone.now() + CLAIM))


def _try(row: WebhookDelivery) -> bool:
    message = outbound.Message(
        row.message_id, row.body.encode(), row.webhook.secret, int(time.time())
    )
    if not row.webhook.enabled:
        return _give_up(row, "its webhook was switched off")
    try:
        status = outbound.send(row.webhook.url, message)
    except outbound.NotDelivered as error:
        return _failed(row, None, str(error))
    if not 200 <= status < 300:
        return _failed(row, status, f"it answered {status}")
    row.outcome, row.last_status, row.last_error = row.Outcome.DELIVERED, status, ""
    row.delivered_at = timezone.now()
    row.save(update_fields=["outcome", "last_status", "last_error", "delivered_at"])
    return True


def _failed(row: WebhookDelivery, status: int | None, error: str) -> bool:
    log.warning(
        "webhook_not_delivered", webhook=row.webhook.name, message=row.message_id, why=error
    )
    pause_s = next_try_s(row.attempts)
    if pause_s is None:
        row.last_status = status
        return _give_up(row, f"{error}; given up after {counted(row.attempts, 'attempts')}")
    row.last_status, row.last_error = status, error[:300]
    row.next_try_at = timezone.now() + timedelta(seconds=pause_s)
    row.save(update_fields=["last_status", "last_error", "next_try_at"])
    return False


def _give_up(row: WebhookDelivery, why: str) -> bool:
    row.outcome, row.last_error = row.Outcome.FAILED, why[:300]
    row.save(update_fields=["outcome", "last_status", "last_error"])
    return False
