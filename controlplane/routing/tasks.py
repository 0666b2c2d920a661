"""Celery shells of routing: ids in, one service call, safe to run twice, late, or out of order."""

from __future__ import annotations

from celery import shared_task

from controlplane.routing import services


@shared_task(name="routing.publish", acks_late=True, soft_time_limit=30, time_limit=40)
def publish() -> None:
    """Publish a table if the fleet changed since the last."""
    services.publish_if_behind()


@shared_task(name="routing.deliver", acks_late=True, soft_time_limit=10, time_limit=15)
def deliver(agent_id: int, epoch: int) -> None:
    """Bring one agent to at least `epoch`."""
    services.deliver_table(agent_id=agent_id, epoch=epoch)


@shared_task(name="routing.sweep", acks_late=True, soft_time_limit=30, time_limit=40)
def sweep() -> None:
    """Repair what lost hints left undone."""
    services.sweep()


@shared_task(name="routing.reconcile", acks_late=True, soft_time_limit=30, time_limit=40)
def reconcile() -> None:
    """Move replicas on by what agents report."""
    services.reconcile_replicas()
