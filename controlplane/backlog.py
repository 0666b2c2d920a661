"""How much background work waits at the broker, and since when."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Final

import redis
from celery import current_app, signals
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

SENT_AT: Final = "signalbox_sent_at"  # a header of each task: Unix seconds
TAKEN: Final = "unacked"  # where kombu keeps what workers took and have not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The broker's queue; `fault` says why nothing is known of it."""

    waiting: int = 0
    under_way: int = 0
    oldest_age_s: float | None = None
    fault: str = ""


def connect() -> None:
    """Have each task carry when it was sent."""
    signals.before_task_publish.connect(_stamp)


def look() -> Backlog:
    """Look at the queue once; ends within a few tenths of a second."""
    if not settings.CELERY_BROKER_URL.startswith(("redis://", "rediss://", "unix://")):
        return Backlog(fault="the broker is not Redis")
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_timeout=settings.REDIS_TIMEOUT_S,
        socket_connect_timeout=settings.REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return _read(client, str(current_app.conf.task_default_queue))
    except redis.RedisError as error:
        return Backlog(fault=f"Redis does not answer: {error}")
    finally:
        client.close()


def _read(client: Any, queue: str) -> Backlog:
    pipe = client.pipeline(transaction=False)
    pipe.llen(queue).hlen(TAKEN).lindex(queue, -1)  # new ones are pushed at the head
    waiting, under_way, oldest = pipe.execute()
    return Backlog(
        waiting=waiting, under_way=under_way, oldest_age_s=_age_s(oldest) if oldest else None
    )


def _age_s(message: bytes) -> float | None:
    try:
        return max(0.0, time.time() - float(json.loads(message)["headers"][SENT_AT]))
    except (ValueError, KeyError, TypeError):  # sent by an older version
        return None


def _stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        headers[SENT_AT] = time.time()
