"""Is this process able to work: the database, its migrations, the broker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from redis.backoff import NoBackoff
from redis.retry import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What was found; empty texts and lists mean all is well."""

    database_fault: str = ""
    missing_migrations: tuple[str, ...] = ()
    broker_fault: str = ""

    @property
    def is_ready(self) -> bool:
        """Say whether requests can be answered; a missing broker only slows background work."""
        return not self.database_fault and not self.missing_migrations

    @property
    def status(self) -> str:
        """Give one word: ready, degraded or unready."""
        if not self.is_ready:
            return "unready"
        return "degraded" if self.broker_fault else "ready"


def look() -> Readiness:
    """Look at everything once; ends within a second even when all is gone."""
    try:
        missing, fault = missing_migrations(), ""
    except DatabaseError as error:
        missing, fault = (), f"The database does not answer: {str(error).strip()}"
    return Readiness(database_fault=fault, missing_migrations=missing, broker_fault=broker_fault())


def missing_migrations() -> tuple[str, ...]:
    """Name the migrations of this code that the database has not had."""
    applied = MigrationRecorder(connection).applied_migrations()
    return tuple(f"{app}.{name}" for app, name in _known_migrations() if (app, name) not in applied)


def broker_fault() -> str:
    """Say what is wrong with the broker; empty when it answers."""
    if not settings.CELERY_BROKER_URL.startswith(("redis://", "rediss://", "unix://")):
        return ""
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_timeout=settings.REDIS_TIMEOUT_S,
        socket_connect_timeout=settings.REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        client.ping()
    except redis.RedisError as error:
        return f"Redis does not answer: {error}"
    finally:
        client.close()
    return ""


@cache
def _known_migrations() -> tuple[tuple[str, str], ...]:
    loader = MigrationLoader(None)
    return tuple(sorted(loader.disk_migrations))
