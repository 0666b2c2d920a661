"""Celery shells of rollouts."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.rollouts import services


@shared_task(name="rollouts.evaluate", acks_late=True, soft_time_limit=30, time_limit=40)
def evaluate() -> str:
    """Judge running rollouts and move them on. Safe to run twice, late, or out of order."""
    return services.evaluate_all()


@shared_task(name="rollouts.forget_pairs", acks_late=True, soft_time_limit=35, time_limit=40)
def forget_pairs() -> int:
    """Forget shadow pairs past their retention. Safe to run twice, late, or out of order."""
    before = timezone.now() - timedelta(days=settings.SHADOW_RETENTION_DAYS)
    return services.forget_pairs(before=before, keep_rows=settings.SHADOW_ROWS_LIMIT)
