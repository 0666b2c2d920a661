"""Reads what the machinery went through from the audit trail, for "What happened"."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from controlplane.audit.models import AuditEvent
from controlplane.domain.happenings import EJECT, RESTORE, VERBS, Happening, Notice, told

DAY = timedelta(hours=24)
HOUR = timedelta(hours=1)
EVENTS_READ = 500
LINES_SHOWN = 50
ON_OVERVIEW = 4


def last_day() -> list[Happening]:
    """Give what happened in the last 24 hours, the newest first."""
    rows = AuditEvent.objects.filter(verb__in=VERBS, at__gte=timezone.now() - DAY)
    # What an operator ejects or restores is an act of theirs, and in the audit trail as such.
    rows = rows.exclude(verb__in=(EJECT, RESTORE), actor_kind__in=("user", "token", "command"))
    return told([_notice(row) for row in rows[:EVENTS_READ]])[:LINES_SHOWN]


def last_hour() -> list[Happening]:
    """Give the few newest things that ended within the last hour."""
    since = timezone.now() - HOUR
    return [h for h in last_day() if (h.until or h.since) >= since][:ON_OVERVIEW]


def _notice(row: AuditEvent) -> Notice:
    said: dict[str, Any] = row.after if isinstance(row.after, dict) else {}
    return Notice(
        verb=row.verb,
        subject=row.actor if row.actor_kind == "agent" else row.target,
        at=_moment(said.get("to")) or row.at,
        since=_moment(said.get("from")) or row.at,
        reason=row.reason,
        restarted=bool(said.get("restarted")),
        table_source=str(said.get("table_source", "")),
        epoch=int(said.get("epoch", 0)),
    )


def _moment(value: Any) -> datetime | None:
    return parse_datetime(value) if isinstance(value, str) else None
