"""The table of cases says what is true: each test it names exists, no case is left out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "robustness.md"
SHORT = {"proxy/": "agent/proxy/", "core/": "agent/core/"}
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", DOCUMENT.read_text())))
ROW = re.compile(r"^\| (R\d\d) \|.+?\|(.*?)\| (.+?) \|$", re.MULTILINE)
ROWS = ROW.findall(DOCUMENT.read_text())


@cache
def source(path: str) -> str:
    for short, whole in SHORT.items():
        if path.startswith(short):
            path = path.replace(short, whole, 1)
    return (TESTS / path).read_text()


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^ *(async )?def {name}\(", source(path), re.MULTILINE)


def test_every_case_has_a_row_and_either_a_test_or_what_it_waits_for() -> None:
    cases = [case for case, _, _ in ROWS]
    assert cases == [f"R{i:02}" for i in range(1, 64)]
    for case, tests, state in ROWS:
        assert state.startswith("pass" if tests.strip() else "later: "), case
