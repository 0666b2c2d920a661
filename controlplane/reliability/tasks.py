"""Celery shells of reliability. Safe to run twice, late, or out of order."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from controlplane.reliability import services


@shared_task(name="reliability.book_budgets", acks_late=True, soft_time_limit=35, time_limit=40)
def book_budgets() -> str:
    """Book what was spent of error budgets."""
    return services.book_budgets(timezone.now())


@shared_task(name="reliability.judge_alerts", acks_late=True, soft_time_limit=35, time_limit=40)
def judge_alerts() -> str:
    """Judge every rule on every subject."""
    return services.judge_alerts(timezone.now())


@shared_task(name="reliability.deliver", acks_late=True, soft_time_limit=35, time_limit=40)
def deliver() -> str:
    """Bring messages to webhooks."""
    return services.deliver_messages()
