"""What apps above know to be wrong with pools: they register a source, nobody imports upwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controlplane.domain.attention import Trouble

Source = Callable[[], Mapping[str, Sequence[Trouble]]]  # by the pool's slug

_sources: list[Source] = []


def register(source: Source) -> None:
    """Take a source of troubles in, once."""
    if source not in _sources:
        _sources.append(source)


def now() -> dict[str, list[Trouble]]:
    """Give what is wrong with each pool by slug; a constant number of queries."""
    found: dict[str, list[Trouble]] = {}
    for source in _sources:
        for slug, troubles in source().items():
            found.setdefault(slug, []).extend(troubles)
    return found


def of_pool(slug: str, context: Any) -> Sequence[Trouble]:
    """Give what is wrong with one pool of a list; read once for the list, kept in its context."""
    if "troubles" not in context:
        context["troubles"] = now()
    found: dict[str, list[Trouble]] = context["troubles"]
    return found.get(slug, ())
