"""One real stack for all end-to-end tests; each test finds it whole and leaves it mendable."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, copy_of_checkout


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell a story in its order, whatever the order of the others; what stops all comes last."""
    stopping = [item for item in items if item.get_closest_marker("stops_all")]
    stopping.sort(key=lambda item: (str(item.path), item.location[1] or 0))
    items[:] = [item for item in items if item not in stopping] + stopping
    chapters = [item for item in items if item.get_closest_marker("story")]
    chapters.sort(key=lambda item: (str(item.path), item.location[1] or 0))
    told = iter(chapters)
    items[:] = [next(told) if item.get_closest_marker("story") else item for item in items]


@pytest.fixture(scope="session")
def started_stack() -> Iterator[Stack]:
    """Start the product once; it is down and its folder gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="signalbox-e2e-"))
    copy_of_checkout(root)
    stack = Stack(root)
    try:
        stack.printed = stack.up()
        yield stack
    finally:
        stack.command("down")
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def stack(started_stack: Stack) -> Stack:
    """Give the stack with every service up and well."""
    started_stack.mend()
    return started_stack
