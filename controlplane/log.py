"""Logging of web, worker, beat and commands: one JSON line per event on standard error.

Our own events and those of Django, Celery and uvicorn take the same way and have the same shape.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from django.conf import settings
from structlog.typing import EventDict, Processor

# Values under these keys never reach a log, whoever logs them.
SECRET_KEYS = frozenset(
    {"token", "agent_token", "credential", "authorization", "api_key", "password", "plaintext"}
)

# Libraries that set up handlers of their own; theirs go, their events come to us.
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "django", "django.server")

# Requests and task runs are counted; a line each would drown what matters.
_ONLY_WARNINGS = (
    "uvicorn.access",
    "django.request",
    "kombu",
    "amqp",
    "axes",
    "celery.app.trace",
    "celery.beat",
    "celery.worker.strategy",
)


def configure(options: dict[str, Any]) -> None:
    """Set up logging for this process; Django calls it with `settings.LOGGING`."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    _take_over(_handler(shared), str(options.get("level", "INFO")).upper())


def keep_ours(**_: Any) -> None:
    """Answer Celery's offer to set logging up: ours stays."""
    configure({"level": settings.LOG_LEVEL})


class _StandardError(logging.StreamHandler[Any]):
    """Writes to standard error as it is at that moment, not as it was at start."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def hide_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace the values of secret keys in a log event."""
    for key in SECRET_KEYS & event.keys():
        event[key] = "***"
    return event


def _handler(shared: list[Processor]) -> logging.Handler:
    handler = _StandardError()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    return handler


def _take_over(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
    for name in _ONLY_WARNINGS:
        logging.getLogger(name).setLevel(logging.WARNING)
