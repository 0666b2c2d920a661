"""What belongs to what, for roll-ups: the app that owns the fleet tells it, from above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The fleet as the database has it now. Agents and replicas by public id, pools by slug."""

    models: Mapping[str, str] = field(default_factory=dict)  # pool → model
    versions: Mapping[str, str] = field(default_factory=dict)  # pool → its version's name
    nodes: Mapping[str, str] = field(default_factory=dict)  # replica → node
    agents: Mapping[str, str] = field(default_factory=dict)  # agent → node
    held: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    # pool → agent → indices of the GPUs its replicas hold there


Source = Callable[[], Topology]

_sources: list[Source] = []


def register(source: Source) -> None:
    """Take the source of the fleet's shape in; the newest counts."""
    _sources[:] = [source]


def now() -> Topology:
    """Give the fleet's shape, empty where nobody told it."""
    return _sources[0]() if _sources else Topology()
