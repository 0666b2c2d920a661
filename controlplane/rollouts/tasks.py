"""Celery shells of rollouts."""

from __future__ import annotations

from celery import shared_task

from controlplane.rollouts import services


@shared_task(name="rollouts.evaluate", acks_late=True, soft_time_limit=30, time_limit=40)
def evaluate() -> str:
    """Judge running rollouts and move them on. Safe to run twice, late, or out of order."""
    return services.evaluate_all()
