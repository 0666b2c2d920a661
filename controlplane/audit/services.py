"""Recording changes and raising the fleet revision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from django.db import connection
from django.db.models import F

from controlplane.audit.models import AuditEvent, FleetRevision


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change: a person, an API token, an agent, a control loop or a command."""

    name: str
    kind: Literal["user", "token", "agent", "loop", "command"] = "user"


_collected: ContextVar[list[AuditEvent] | None] = ContextVar("audit_events", default=None)


@contextmanager
def collecting() -> Iterator[list[AuditEvent]]:
    """Give a list that fills with the events recorded within the block."""
    events: list[AuditEvent] = []
    token = _collected.set(events)
    try:
        yield events
    finally:
        _collected.reset(token)


def raise_fleet_revision() -> int:
    """Raise the fleet revision by one inside the caller's transaction and give the new number.

    The row lock this takes serialises the ends of such transactions, so a reader that sees
    revision n sees every change up to n.

    Raises:
        RuntimeError: outside a transaction, where the change and its number could part.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("raise_fleet_revision() belongs inside the transaction of the change.")
    if not FleetRevision.objects.filter(pk=1).update(revision=F("revision") + 1):
        FleetRevision.objects.get_or_create(pk=1)
        FleetRevision.objects.filter(pk=1).update(revision=F("revision") + 1)
    return FleetRevision.objects.get(pk=1).revision


def record(
    *,
    actor: Actor,
    verb: str,
    target: tuple[str, str],
    reason: str = "",
    change: tuple[Any, Any] = (None, None),
    touches_fleet: bool = False,
) -> AuditEvent:
    """Write one audit event; `touches_fleet` also raises the fleet revision.

    Args:
        target: kind and name, for example `("replica", "rpl-7f3a")`.
        change: what it was before and is after, as JSON values.
    """
    kind, name = target
    event = AuditEvent.objects.create(
        actor=actor.name,
        actor_kind=actor.kind,
        verb=verb,
        target_kind=kind,
        target=name,
        reason=reason,
        before=change[0],
        after=change[1],
        fleet_revision=raise_fleet_revision() if touches_fleet else None,
    )
    collected = _collected.get()
    if collected is not None:
        collected.append(event)
    return event


def forget_before(moment: datetime) -> int:
    """Delete events older than `moment` and say how many there were."""
    deleted, _ = AuditEvent.objects.filter(at__lt=moment).delete()
    return deleted
