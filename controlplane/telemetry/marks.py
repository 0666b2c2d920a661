"""What other apps mark on pools' charts: they register a source, so nobody imports upwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from controlplane.telemetry.figures import Mark

Source = Callable[[datetime], list[Mark]]  # from a moment on

_sources: list[Source] = []


def register(source: Source) -> None:
    """Take a source of marks in, once."""
    if source not in _sources:
        _sources.append(source)


def since(moment: datetime) -> list[Mark]:
    """Give the marks of all sources from a moment on."""
    return [mark for source in _sources for mark in source(moment)]
