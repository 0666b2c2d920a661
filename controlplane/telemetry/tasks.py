"""Celery shells of telemetry."""

from __future__ import annotations

import time
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.telemetry import services


@shared_task(name="telemetry.roll_up", acks_late=True, soft_time_limit=35, time_limit=40)
def roll_up() -> str:
    """Keep the recent store's finished minutes. Safe to run twice, late, or out of order."""
    return services.roll_up(time.time())


@shared_task(name="telemetry.forget", acks_late=True, soft_time_limit=35, time_limit=40)
def forget() -> int:
    """Forget roll-ups past their retention. Safe to run twice, late, or out of order."""
    now = timezone.now()
    return services.forget(
        minutes_before=now - timedelta(hours=settings.MINUTE_ROLLUP_HOURS),
        hours_before=now - timedelta(days=settings.HOUR_ROLLUP_DAYS),
    )
