"""Fuzzes one target until libFuzzer's options say stop; started by `tests.fuzz`."""

from __future__ import annotations

import logging
import sys

import atheris  # type: ignore[import-untyped]  # it has no types, nor should it need any
import structlog

with atheris.instrument_imports(include=["routing_agent"]):
    from tests.fuzz.targets import TARGETS

name = sys.argv.pop(1)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
atheris.Setup(sys.argv, TARGETS[name])
atheris.Fuzz()
