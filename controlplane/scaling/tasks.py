"""Celery shells of scaling. Safe to run twice, late, out of order, and in two workers at once."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.scaling import services


@shared_task(name="scaling.run", acks_late=True, soft_time_limit=35, time_limit=40)
def run() -> str:
    """Decide for every pool, then bring engines to what is wanted."""
    decided = services.decide_all(timezone.now())
    return f"{decided}; {services.execute_all(timezone.now())}"


@shared_task(name="scaling.forget", acks_late=True, soft_time_limit=35, time_limit=40)
def forget() -> int:
    """Delete old decisions and stopped replicas."""
    days = timedelta(days=settings.SCALING_RETENTION_DAYS)
    return services.forget_before(timezone.now() - days)
