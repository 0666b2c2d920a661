"""What telemetry hands out: series and figures with their source and age, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECENT = "recent store"
PROMETHEUS = "Prometheus"


@dataclass(frozen=True, slots=True)
class NoData:
    """An explicit absence; `reason` is shown to operators as it stands."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time in equal steps; `end_s` is aligned, so that points never wobble."""

    end_s: int
    step_s: int
    steps: int
    # Each point covers this much time before it: more than a step, so that few samples still tell.
    span_s: int
    base_s: int = 5  # of the stored sums it is made from: 5 s steps or whole minutes

    @property
    def start_s(self) -> int:
        """Give the beginning of the first step."""
        return self.end_s - self.step_s * self.steps

    @property
    def times(self) -> list[int]:
        """Give the end of each step, in Unix seconds."""
        return [self.start_s + self.step_s * (i + 1) for i in range(self.steps)]


# Name in the URL: (length, step, span of one point, base), in seconds. At most 180 points a trace.
# An hour is drawn from minutes: sixty reads instead of seven hundred.
WINDOWS: Mapping[str, tuple[int, int, int, int]] = {
    "5m": (300, 5, 15, 5),
    "15m": (900, 5, 30, 5),
    "1h": (3600, 60, 60, 60),
}
DEFAULT_WINDOW = "15m"


def window(name: str, now_s: float) -> Window:
    """Give the window called `name` (or the default) that ends at the last full step."""
    length_s, step_s, span_s, base_s = WINDOWS.get(name, WINDOWS[DEFAULT_WINDOW])
    end_s = int(now_s) // step_s * step_s
    return Window(
        end_s=end_s, step_s=step_s, steps=length_s // step_s, span_s=span_s, base_s=base_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSet:
    """Named series over one window; a None point is a gap: nobody reported, which is not zero."""

    window: Window
    unit: str
    series: Mapping[str, Sequence[float | None]]
    source: str
    note: str = ""  # what is missing and why, when something is

    @property
    def is_empty(self) -> bool:
        """Say whether there is not a single point."""
        return all(v is None for values in self.series.values() for v in values)

    def latest(self, name: str) -> float | None:
        """Give the newest finite point of a series."""
        known = (v for v in reversed(self.series.get(name, ())) if v is not None)
        return next((v for v in known if math.isfinite(v)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStep:
    """One replica in one step: the engine's last gauges and what was added meanwhile."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStep:
    """One pool in one step, over all agents: new samples by bucket and counts."""

    histograms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    shed: int = 0
    replicas: Mapping[str, ReplicaStep] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """One GPU's readings in one step."""

    utilization: float | None = None
    memory_used_bytes: float | None = None
    temperature_celsius: float | None = None
