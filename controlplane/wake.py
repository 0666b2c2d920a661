"""Waking a background task by its name: a hint that makes things prompt, never a duty.

The database is the truth and a sweep repairs whatever a lost hint leaves undone, so a dead or
frozen broker costs one request a few tenths of a second, then nothing while the circuit is open.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from celery import current_app
from django.conf import settings
from kombu.connection import Connection

CIRCUIT_OPEN_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class BrokerHealth:
    """What this process knows of the broker; shown on /metrics and the System page."""

    errors_total: int = 0
    sent_total: int = 0
    skipped_total: int = 0  # not tried, because the circuit was open
    last_error: str = ""
    open_until: float = 0.0  # monotonic seconds

    def is_open(self, now: float) -> bool:
        """Say whether the broker is left alone for now."""
        return now < self.open_until


health = BrokerHealth()
_lock = threading.Lock()
_connections: dict[int, Connection] = {}  # by process id: a forked child opens its own


def wake(task_name: str, *args: Any) -> bool:
    """Ask a worker to run `task_name` soon; say whether the broker took it; never raise."""
    if health.is_open(time.monotonic()):
        health.skipped_total += 1
        return False
    if not _lock.acquire(timeout=settings.REDIS_TIMEOUT_S):
        health.skipped_total += 1
        return False
    try:
        _send(task_name, args)
    except Exception as error:  # whatever it is, the caller's work is done and stays done
        _book_failure(task_name, error)
        return False
    finally:
        _lock.release()
    health.sent_total += 1
    return True


def waker(task_name: str, *args: Any) -> Callable[[], None]:
    """Give what `transaction.on_commit` wants: a call that wakes the task."""

    def call() -> None:
        wake(task_name, *args)

    return call


def broker_errors_total() -> int:
    """Give how often this process failed to reach the broker since it started."""
    return health.errors_total


def _send(task_name: str, args: tuple[Any, ...]) -> None:
    """Send on the kept connection; if that fails, once more on a new one.

    A broker that was restarted closed the kept one, and that is only noticed by using it.
    """
    kept = _connections.get(os.getpid())
    if kept is not None:
        try:
            return _send_on(kept, task_name, args)
        except Exception as error:
            log.info("broker_connection_lost", error=str(error))
            _drop_connections()
    _connections[os.getpid()] = fresh = _connect()
    return _send_on(fresh, task_name, args)


def _send_on(connection: Connection, task_name: str, args: tuple[Any, ...]) -> None:
    current_app.send_task(
        task_name, args=args, connection=connection, retry=False, ignore_result=True
    )


def _drop_connections() -> None:
    for connection in _connections.values():
        connection.collect()
    _connections.clear()


def _connect() -> Connection:
    timeouts = {
        "socket_timeout": settings.REDIS_TIMEOUT_S,
        "socket_connect_timeout": settings.REDIS_TIMEOUT_S,
        "retry_on_timeout": False,
        # Without these kombu goes on trying to connect for five seconds.
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0,
        "connect_retries_timeout": settings.REDIS_TIMEOUT_S,
    }
    url = settings.CELERY_BROKER_URL
    options = {} if url.startswith("memory") else timeouts
    return Connection(url, transport_options=options)


def _book_failure(task_name: str, error: Exception) -> None:
    health.errors_total += 1
    health.last_error = f"{type(error).__name__}: {error}"
    health.open_until = time.monotonic() + CIRCUIT_OPEN_S
    _drop_connections()
    log.warning("broker_unreachable", task=task_name, error=health.last_error)
