"""What happens to a fleet in the middle of a replay: it grows or shrinks, tires, is seen anew."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """From a moment on only the first so many replicas take new requests.

    Those that come start gently, with an empty cache; those that go end what they have.
    """

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """From a moment on each step of an engine takes so many times as long."""

    at_s: float
    engine: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshAgents:
    """All agents start anew: they know nothing, while the engines go on with what they have."""

    at_s: float


Change = Resize | Slowdown | FreshAgents
