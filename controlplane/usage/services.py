"""Booking what agents tell of requests: usage and lives, each once, however often it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

import msgspec
import structlog
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.catalog.services import book_adapter_use
from controlplane.domain import requests
from controlplane.domain.usage import UsageKey, UsageSums, adapter_uses, last_uses, roll_up
from controlplane.fleet.models import Agent
from controlplane.tenants.services import book_key_use
from controlplane.usage.models import RequestRecord, UsageCursor, UsageHour
from routing_agent import wire
from routing_agent.wire import UsageRecord

log = structlog.get_logger(__name__)

_LENGTHS: Final = {
    f.name: f.max_length for f in RequestRecord._meta.concrete_fields if f.max_length
}
_DELETED_AT_ONCE: Final = 2000  # a short lock each, so that reports are booked in between


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
    book_key_use(last_uses(fresh, now=timezone.now()))
    book_adapter_use(adapter_uses(fresh, now=timezone.now()))
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


def book_records(*, agent: Agent, records: Sequence[wire.RequestRecord]) -> int:
    """Book lives of requests and give the number up to which all are booked.

    One that the database does not take is left out and said aloud: it must not hold up the rest.
    """
    rows = [_row(agent, record, timezone.now()) for record in records]
    try:
        with transaction.atomic():
            RequestRecord.objects.bulk_create(rows, ignore_conflicts=True)
    except DatabaseError:
        for row in rows:
            _book_one(row)
    return max((record.number for record in records), default=0)


def _book_one(row: RequestRecord) -> None:
    try:
        with transaction.atomic():
            RequestRecord.objects.bulk_create([row], ignore_conflicts=True)
    except DatabaseError as error:
        log.error("request_record_left_out", request_id=row.request_id, why=str(error))


def _row(agent: Agent, record: wire.RequestRecord, now: datetime) -> RequestRecord:
    decision = record.decision
    # PostgreSQL stores no NUL, neither in a text nor in JSON.
    life = msgspec.json.encode(record).replace(rb"\u0000", rb"\ufffd")
    texts = {
        "uid": record.uid,
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "node": agent.node.name,
        "tenant": record.tenant,
        "api_key": record.api_key,
        "model": record.model,
        "version": decision.version,
        "pool": decision.pool,
        "replica": decision.replica,
        "adapter": record.adapter,
        "path": record.path,
        "error": record.error,
        "kept": record.kept,
    }
    return RequestRecord(
        **{name: _fitting(name, text) for name, text in texts.items()},
        received_at=requests.moment(record.received_at, now=now),
        status=record.status,
        failed=record.status >= requests.FAILED_FROM,
        attempts=len(record.attempts),
        prompt_tokens=record.prompt_tokens,
        cached_prompt_tokens=record.cached_prompt_tokens,
        output_tokens=record.output_tokens,
        estimated=record.estimated,
        queue_wait_s=record.queue_wait_s,
        ttft_s=record.ttft_s,
        e2e_s=record.e2e_s,
        life=msgspec.json.decode(life),
    )


def _fitting(name: str, text: str) -> str:
    return text.replace("\x00", "\ufffd")[: _LENGTHS[name]]


def forget_requests(*, before: datetime, keep_rows: int) -> int:
    """Delete lives older than `before`, and the oldest beyond `keep_rows`; say how many."""
    deleted = _delete(RequestRecord.objects.filter(received_at__lt=before).order_by("pk"))
    beyond = RequestRecord.objects.order_by("-pk").values_list("pk", flat=True)[keep_rows:][:1]
    for newest in beyond:
        deleted += _delete(RequestRecord.objects.filter(pk__lte=newest).order_by("pk"))
    return deleted


def _delete(found: QuerySet[RequestRecord]) -> int:
    deleted = 0
    while keys := list(found.values_list("pk", flat=True)[:_DELETED_AT_ONCE]):
        deleted += RequestRecord.objects.filter(pk__in=keys).delete()[0]
    return deleted
