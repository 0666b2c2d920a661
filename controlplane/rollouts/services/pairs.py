"""Booking what agents tell of copied requests, reviewing it, and forgetting it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import structlog
from django.db import DatabaseError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain import requests, shadow_pairs
from controlplane.domain.errors import Invalid
from controlplane.rollouts import selectors
from controlplane.rollouts.models import ShadowPair
from routing_agent import wire

log = structlog.get_logger(__name__)

_LENGTHS: Final = {f.name: f.max_length for f in ShadowPair._meta.concrete_fields if f.max_length}
_DELETED_AT_ONCE: Final = 2000  # a short lock each


def book_pairs(pairs: Sequence[wire.ShadowPair]) -> int:
    """Book compared answers and give the number up to which all are booked.

    One that the database does not take is left out and said aloud: it must not hold up the rest.
    """
    rows = [_row(pair, timezone.now()) for pair in pairs]
    try:
        with transaction.atomic():
            ShadowPair.objects.bulk_create(rows, ignore_conflicts=True)
    except DatabaseError:
        for row in rows:
            _book_one(row)
    return max((pair.number for pair in pairs), default=0)


def _book_one(row: ShadowPair) -> None:
    try:
        with transaction.atomic():
            ShadowPair.objects.bulk_create([row], ignore_conflicts=True)
    except DatabaseError as error:
        log.error("shadow_pair_left_out", request_id=row.request_id, why=str(error))


def _row(pair: wire.ShadowPair, now: datetime) -> ShadowPair:
    texts = {
        "uid": pair.uid,
        "request_id": pair.request_id,
        "tenant": pair.tenant,
        "model": pair.model,
        "pool": pair.pool,
        "shadow_pool": pair.shadow_pool,
        "primary_version": pair.primary.version,
        "shadow_version": pair.shadow.version,
        "path": pair.path,
    }
    return ShadowPair(
        **{name: _sound(text)[: _LENGTHS[name]] for name, text in texts.items()},
        at=requests.moment(pair.at, now=now),
        stream=pair.stream,
        outcome=shadow_pairs.outcome(pair),
        first_difference=pair.first_difference,
        primary=_plain(pair.primary),
        shadow=_plain(pair.shadow),
        prompt=_sound(pair.prompt),
    )


def _plain(answer: wire.ShadowAnswer) -> dict[str, Any]:
    # PostgreSQL stores no NUL, neither in a text nor in JSON.
    values = {name: getattr(answer, name) for name in answer.__struct_fields__}
    return {n: _sound(v) if isinstance(v, str) else v for n, v in values.items()}


def _sound(text: str) -> str:
    return text.replace("\x00", "\ufffd")


@transaction.atomic
def review_pair(*, uid: str, review: str, actor: Actor, reason: str) -> ShadowPair:
    """Keep what a person makes of the shadow's answer; "" takes it back."""
    if review not in {"", *ShadowPair.Review.values}:
        raise Invalid("review is good, bad, or empty to take it back.", field="review")
    row = selectors.pair(uid)
    before = row.review
    row.review = review
    row.reviewed_by = actor.name if review else ""
    row.reviewed_at = timezone.now() if review else None
    row.note = reason[: _LENGTHS["note"]]
    row.save(update_fields=["review", "reviewed_by", "reviewed_at", "note"])
    record(
        actor=actor,
        verb="shadow_pair.review",
        target=("shadow_pair", uid),
        reason=reason,
        change=({"review": before}, {"review": review}),
    )
    return row


def forget_pairs(*, before: datetime, keep_rows: int) -> int:
    """Delete pairs older than `before`, and the oldest beyond `keep_rows`; say how many."""
    deleted = _delete(ShadowPair.objects.filter(at__lt=before).order_by("pk"))
    beyond = ShadowPair.objects.order_by("-pk").values_list("pk", flat=True)[keep_rows:][:1]
    for newest in beyond:
        deleted += _delete(ShadowPair.objects.filter(pk__lte=newest).order_by("pk"))
    return deleted


def _delete(found: QuerySet[ShadowPair]) -> int:
    deleted = 0
    while keys := list(found.values_list("pk", flat=True)[:_DELETED_AT_ONCE]):
        deleted += ShadowPair.objects.filter(pk__in=keys).delete()[0]
    return deleted
