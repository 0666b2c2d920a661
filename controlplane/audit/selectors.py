"""Reads of the audit log."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.audit.models import AuditEvent, FleetRevision


def events(*, target_kind: str | None = None, target: str | None = None) -> QuerySet[AuditEvent]:
    """Give events, newest first, of everything or of one kind of thing or one thing."""
    found = AuditEvent.objects.all()
    if target_kind is not None:
        found = found.filter(target_kind=target_kind)
    if target is not None:
        found = found.filter(target=target)
    return found


def fleet_revision() -> int:
    """Give the number of changes to the fleet so far; 0 before the first."""
    return FleetRevision.objects.filter(pk=1).values_list("revision", flat=True).first() or 0
