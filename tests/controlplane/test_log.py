"""Logs: one JSON line per event for ours and the libraries', secrets replaced."""

from __future__ import annotations

import json
import logging

import structlog

from controlplane import log


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_our_events_and_the_libraries_have_one_shape(capsys):
    log.configure({"level": "info"})
    structlog.get_logger("ours").info("table_published", epoch=3)
    logging.getLogger("celery.worker").warning("theirs %s", "too")
    logging.getLogger("uvicorn.access").info("not this")
    first, second = lines(capsys)
    assert (first["event"], first["epoch"], first["level"]) == ("table_published", 3, "info")
    assert (second["event"], second["logger"]) == ("theirs too", "celery.worker")
    assert first["timestamp"] < second["timestamp"]


def test_secrets_are_replaced_and_exceptions_are_one_line(capsys):
    log.keep_ours()
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger("ours").exception("failed", token="abc", credential="def")
    (event,) = lines(capsys)
    assert (event["token"], event["credential"]) == ("***", "***")
    assert "ValueError: why" in event["exception"]
