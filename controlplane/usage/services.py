"""Booking usage: each record once, however often an agent sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.domain.usage import UsageKey, UsageSums, roll_up
from controlplane.fleet.models import Agent
from controlplane.usage.models import UsageCursor, UsageHour
from routing_agent.wire import UsageRecord


@transaction.atomic
def book_usage(*, agent: Agent, records: Sequence[UsageRecord]) -> int:
    """Book an agent's new records and give the number up to which all are booked.

    Cursor and sums change in one transaction, and only for whoever moves the cursor from where they
    found it: a report sent twice, or handled by two processes at once, counts once.
    """
    cursor, _ = UsageCursor.objects.get_or_create(
        agent=agent, defaults={"token_sha256": agent.token_sha256}
    )
    is_same_registration = cursor.token_sha256 == agent.token_sha256
    done = cursor.acknowledged if is_same_registration else 0
    fresh = [record for record in records if record.number > done]
    if not fresh:
        return done
    newest = max(record.number for record in fresh)
    won = UsageCursor.objects.filter(
        pk=cursor.pk, acknowledged=cursor.acknowledged, token_sha256=cursor.token_sha256
    ).update(acknowledged=newest, token_sha256=agent.token_sha256)
    if not won:
        return done
    for key, sums in roll_up(fresh, now=timezone.now()).items():
        _add(agent.public_id, key, sums)
    return newest


def _add(agent: str, key: UsageKey, sums: UsageSums) -> None:
    rows = UsageHour.objects.filter(agent=agent, **asdict(key))
    added = asdict(sums)
    if rows.update(**{name: F(name) + n for name, n in added.items()}):
        return
    try:
        with transaction.atomic():
            UsageHour.objects.create(agent=agent, **asdict(key), **added)
    except IntegrityError:  # made meanwhile for this agent's previous registration
        rows.update(**{name: F(name) + n for name, n in added.items()})
