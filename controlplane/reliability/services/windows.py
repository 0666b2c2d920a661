"""Maintenance windows: time that does not count, declared ahead or shortly after."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane import locking
from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Invalid, NotFound
from controlplane.fleet.models import Pool
from controlplane.reliability.models import MaintenanceWindow
from controlplane.reliability.services import budgets

LONGEST: Final = timedelta(days=7)


@transaction.atomic
def open_window(
    *,
    starts_at: datetime,
    ends_at: datetime,
    actor: Actor,
    reason: str,
    pool: str | None = None,
    kind: str = MaintenanceWindow.Kind.MAINTENANCE,
) -> MaintenanceWindow:
    """Declare time that does not count; what is booked of it already is booked anew.

    Raises:
        Invalid: no reason, or a stretch that is empty, too long, or too far back to book anew.
    """
    now = timezone.now()
    _check(starts_at, ends_at, reason, now)
    row = MaintenanceWindow(
        pool=_pool(pool),
        kind=kind,
        starts_at=starts_at,
        ends_at=ends_at,
        reason=reason,
        created_by=actor.name,
    )
    locking.check(row)
    row.save(force_insert=True)
    budgets.book_again(row.pool, starts_at, ends_at, now)
    _record("maintenance.open", row, actor=actor, reason=reason, change=(None, facts(row)))
    return row


@transaction.atomic
def close_window(*, pk: int, actor: Actor, reason: str) -> MaintenanceWindow:
    """End a window now, or take back one that has not begun; what was maintenance so far stays."""
    row = MaintenanceWindow.objects.select_related("pool").filter(pk=pk).first()
    if row is None:
        raise NotFound(f"There is no maintenance window {pk}.")
    now = timezone.now()
    if row.ends_at <= now:
        raise Invalid("This window is over: what did not count then stays so.", code="over")
    before = facts(row)
    if row.starts_at >= now:
        row.delete()
        row.pk = pk  # what is told of it still names it
    else:
        row.ends_at = now
        row.save(update_fields=["ends_at"])
    _record("maintenance.close", row, actor=actor, reason=reason, change=(before, facts(row)))
    return row


def _check(starts_at: datetime, ends_at: datetime, reason: str, now: datetime) -> None:
    if not reason.strip():
        raise Invalid("Say why: it is told beside every figure it changes.", field="reason")
    if ends_at <= starts_at:
        raise Invalid("ends_at must come after starts_at.", field="ends_at")
    if ends_at - starts_at > LONGEST:
        raise Invalid("A window is at most seven days long.", field="ends_at")
    if starts_at < now - budgets.MINUTES_KEPT:
        raise Invalid(
            "starts_at is over 47 hours ago: minutes that old are no longer kept, so they cannot be"
            " booked anew.",
            field="starts_at",
        )


def _pool(slug: str | None) -> Pool | None:
    if slug is None:
        return None
    row = Pool.objects.filter(slug=slug).first()
    if row is None:
        raise Invalid(f"There is no pool {slug!r}.", code="unknown_reference", field="pool")
    return row


def facts(row: MaintenanceWindow) -> dict[str, Any]:
    """Give a window as JSON values."""
    return {
        "pool": row.pool.slug if row.pool else None,
        "kind": row.kind,
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
    }


def _record(
    verb: str, row: MaintenanceWindow, *, actor: Actor, reason: str, change: tuple[Any, Any]
) -> None:
    name = row.pool.slug if row.pool else "all pools"
    record(actor=actor, verb=verb, target=("maintenance", name), reason=reason, change=change)
