"""Bringing a table to an agent, and booking what the agent made of it."""

from __future__ import annotations

from controlplane.audit.services import Actor
from controlplane.routing.models import Delivery


def deliver_table(*, agent_id: int, epoch: int) -> Delivery | None:
    """Bring one agent to at least `epoch`. Safe to run twice, late, or out of order."""
    raise NotImplementedError


def retry_delivery(*, agent: str, actor: Actor, reason: str) -> None:
    """Push the newest table to one agent (by public id) again, now."""
    raise NotImplementedError
