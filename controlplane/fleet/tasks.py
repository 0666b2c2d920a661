"""Celery shells of the fleet."""

from __future__ import annotations

from celery import shared_task

from controlplane.fleet import services


@shared_task(name="fleet.adapters", acks_late=True, soft_time_limit=30, time_limit=40)
def adapters() -> str:
    """Compare wanted and observed adapters, and act. Safe to run twice, late, or out of order."""
    return services.reconcile_adapters()
