"""Logging: one JSON line per event on standard error, or readable lines on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict

# Values under these keys never reach a log, whoever logs them.
SECRET_KEYS = frozenset(
    {"token", "agent_token", "credential", "authorization", "api_key", "prompt", "output", "body"}
)


def configure(level: str = "info", *, readable: bool | None = None) -> None:
    """Set up structlog for this process; `readable` None means: if standard error is a terminal."""
    if readable is None:
        readable = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            hide_secrets,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def hide_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace the values of secret keys in a log event."""
    for key in SECRET_KEYS & event.keys():
        event[key] = "***"
    return event
