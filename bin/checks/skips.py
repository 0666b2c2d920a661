"""A pytest plugin (`-p checks.skips`): writes down what was skipped, and runs `e2e` tests last.

Last, because they start the whole product and would slow the others down meanwhile.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

VARIABLE = "SIGNALBOX_SKIPS_FILE"


class Skips:
    """Collects the skipped tests of a run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skip and its reason; an expected failure is none."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr, is_shared="shared" in report.keywords)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that was skipped as a whole."""
        if report.skipped:
            self._note(report.nodeid, report.longrepr, is_shared=False)

    def _note(self, test: str, why: object, *, is_shared: bool) -> None:
        reason = str(why[2]) if isinstance(why, tuple) else str(why)
        reason = reason.removeprefix("Skipped: ")
        self.seen.append({"test": test, "reason": reason, "shared": is_shared})

    def pytest_sessionfinish(self) -> None:
        """Write them down for bin/test."""
        self.file.write_text(json.dumps(self.seen))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the end-to-end tests behind all others."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


def pytest_configure(config: pytest.Config) -> None:
    """Start collecting where bin/test asked for it."""
    if VARIABLE in os.environ:
        config.pluginmanager.register(Skips(Path(os.environ[VARIABLE])))
