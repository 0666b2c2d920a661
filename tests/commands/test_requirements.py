"""What the code imports is pinned by us, with a reason, not only by what we happen to pull in."""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions

import pytest
from stack.layout import ROOT

IMPORT = re.compile(r"^\s*(?:import|from) ([A-Za-z_]\w*)", re.MULTILINE)
PIN = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?==\S+.*?(#.*)?$", re.MULTILINE)
OURS = {"controlplane", "routing_agent", "tests", "bench", "stack", "checks"}
AGENT = ("routing_agent/requirements.txt",)
PRODUCT = ("requirements.txt", *AGENT)
ALL = ("requirements-dev.txt", "requirements-compile.txt", *PRODUCT)


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


@pytest.mark.parametrize(
    ("folder", "files"),
    [("routing_agent", AGENT), ("controlplane", PRODUCT), ("tests", ALL), ("bench", ALL)],
)
def test_every_import_is_pinned(folder: str, files: tuple[str, ...]) -> None:
    texts = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
    found = {name for text in texts for name in IMPORT.findall(text)}
    pinned = {_name(name) for f in files for name, _ in PIN.findall((ROOT / f).read_text())}
    known = packages_distributions()
    told = {name: known[name] for name in found - OURS - sys.stdlib_module_names if name in known}
    loose = {name for name, owners in told.items() if not {_name(o) for o in owners} & pinned}
    assert loose == set()


@pytest.mark.parametrize("file", ALL)
def test_every_pin_has_a_reason(file: str) -> None:
    pins = PIN.findall((ROOT / file).read_text())
    assert pins
    assert [name for name, reason in pins if len(reason) < 8] == []
