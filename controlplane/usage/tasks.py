"""Celery shells of usage."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.usage import services


@shared_task(name="usage.forget_requests", acks_late=True, soft_time_limit=35, time_limit=40)
def forget_requests() -> int:
    """Forget lives of requests past their retention. Safe to run twice, late, or out of order."""
    before = timezone.now() - timedelta(days=settings.REQUEST_RETENTION_DAYS)
    return services.forget_requests(before=before, keep_rows=settings.REQUEST_ROWS_LIMIT)
