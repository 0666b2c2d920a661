"""Celery shells of the audit log."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.audit import services


@shared_task(name="audit.retention", acks_late=True, soft_time_limit=300)
def retention() -> int:
    """Forget events past their retention. Safe to run twice, late, or out of order."""
    return services.forget_before(timezone.now() - timedelta(days=settings.AUDIT_RETENTION_DAYS))
