"""Logs: one JSON line per event, and no secrets in them."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import structlog
from routing_agent import log
log.configure("info")
logger = structlog.get_logger()
logger.debug("not_shown")
logger.info("table_applied", epoch=3, token="secret-token", credential="secret-key")
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("went_wrong")
"""


def test_events_are_json_lines_on_standard_error_without_secrets():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    applied, wrong = map(json.loads, ran.stderr.splitlines())
    assert (applied["event"], applied["epoch"], applied["level"]) == ("table_applied", 3, "info")
    assert "secret" not in ran.stderr
    assert applied["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in wrong["exception"]
