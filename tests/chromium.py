"""Headless Chromium for the tests that look at pages as people do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """Give a browser; the test is skipped where there is none."""
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: the console was not looked at in a browser")
    from playwright.sync_api import sync_playwright

    # Playwright's loop runs in this thread, which Django takes for a mistake; it is none here.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=PROGRAM, args=ARGUMENTS)
            try:
                yield started
            finally:
                started.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
