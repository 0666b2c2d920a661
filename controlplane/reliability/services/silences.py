"""Silences: alerts that nobody is told of for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from controlplane import locking
from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Invalid, NotFound
from controlplane.fleet.models import Pool
from controlplane.reliability.models import Silence

LONGEST: Final = timedelta(days=30)


@transaction.atomic
def create_silence(
    *,
    ends_at: datetime,
    actor: Actor,
    reason: str,
    rule: str = "",
    pool: str = "",
    starts_at: datetime | None = None,
) -> Silence:
    """Keep alerts of a rule, a pool or both from being told until a time.

    Raises:
        Invalid: it would match everything, last too long, be over already, or has no reason.
    """
    begin = starts_at or timezone.now()
    _check(rule, pool, begin, ends_at, reason)
    row = Silence(
        rule=rule,
        pool=pool,
        starts_at=begin,
        ends_at=ends_at,
        reason=reason,
        created_by=actor.name,
    )
    locking.check(row)
    row.save(force_insert=True)
    _record("silence.create", row, actor=actor, reason=reason, change=(None, facts(row)))
    return row


@transaction.atomic
def end_silence(*, pk: int, actor: Actor, reason: str) -> Silence:
    """End a silence now: what still fires is told with the next look."""
    row = Silence.objects.filter(pk=pk).first()
    if row is None:
        raise NotFound(f"There is no silence {pk}.")
    now = timezone.now()
    if row.ends_at <= now:
        raise Invalid("This silence is over already.", code="over")
    before = facts(row)
    row.ends_at = now
    row.starts_at = min(row.starts_at, now)
    row.save(update_fields=["starts_at", "ends_at"])
    _record("silence.end", row, actor=actor, reason=reason, change=(before, facts(row)))
    return row


def _check(rule: str, pool: str, begin: datetime, end: datetime, reason: str) -> None:
    if not rule and not pool:
        raise Invalid("Name a rule, a pool or both: silence for everything is blindness.")
    if pool and not Pool.objects.filter(slug=pool).exists():
        raise Invalid(f"There is no pool {pool!r}.", code="unknown_reference", field="pool")
    if not reason.strip():
        raise Invalid("Say why: others wonder why nobody was told.", field="reason")
    if end <= max(begin, timezone.now()):
        raise Invalid("ends_at must lie ahead, after starts_at.", field="ends_at")
    if end - begin > LONGEST:
        raise Invalid("A silence is at most 30 days long.", field="ends_at")


def facts(row: Silence) -> dict[str, Any]:
    """Give a silence as JSON values."""
    return {
        "rule": row.rule,
        "pool": row.pool,
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
    }


def _record(verb: str, row: Silence, *, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    target = " ".join(part for part in (row.rule, row.pool) if part)
    record(actor=actor, verb=verb, target=("silence", target), reason=reason, change=change)
