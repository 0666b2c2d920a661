"""Reads of the lives of requests."""

from __future__ import annotations

import msgspec
from django.conf import settings
from django.db.models import Q, QuerySet

from controlplane.domain.errors import NotFound
from controlplane.usage.models import RequestRecord
from routing_agent import wire

SEARCHED_LETTERS = 6  # shorter beginnings of ids would find anything


def requests() -> QuerySet[RequestRecord]:
    """Give what lists show, problems first: without the lives, which are large."""
    return RequestRecord.objects.defer("life")


def named(request_id: str) -> QuerySet[RequestRecord]:
    """Give the lives under one request id, the newest first: a client's own id may repeat."""
    return RequestRecord.objects.filter(request_id=request_id).order_by("-received_at", "-pk")


def newest_named(request_id: str) -> RequestRecord:
    """Give the newest life under a request id.

    Raises:
        NotFound: it was not kept; the message says what is.
    """
    found = named(request_id).first()
    if found is None:
        raise NotFound(why_missing(request_id), code="not_kept")
    return found


def life_of(row: RequestRecord) -> wire.RequestRecord:
    """Give a life as its agent told it."""
    return msgspec.convert(row.life, wire.RequestRecord)


def why_missing(request_id: str) -> str:
    """Say why there may be no record of a request."""
    return (
        f"There is no record of request {request_id}: not sampled. {what_is_kept()} "
        "Or its answer is younger than the last report, or no agent gave this id."
    )


def what_is_kept() -> str:
    """Say which requests are kept, and for how long."""
    days: int = settings.REQUEST_RETENTION_DAYS
    share = f"{wire.SAMPLE_RATIO * 100:g} %"
    return (
        f"All failures are kept, requests whose caller traces them, and {share} of the rest "
        f"(unless agents were started with another --sample-ratio), for {days} days. "
        "What was refused before it reached a pool (a key, a quota) is counted, not kept."
    )


def found_by(text: str, limit: int) -> list[RequestRecord]:
    """Find requests whose id or trace id begins with the text, the newest first."""
    if len(text) < SEARCHED_LETTERS:
        return []
    matching = Q(request_id__startswith=text) | Q(trace_id__startswith=text.lower())
    return list(requests().filter(matching).order_by("-received_at")[:limit])
