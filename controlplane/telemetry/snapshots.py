"""What telemetry hands out: series and figures with their source and age, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECENT = "recent store"
PROMETHEUS = "Prometheus"
MINUTES = "minute roll-ups"
HOURS = "hour roll-ups"
MINUTE_S = 60
HOUR_S = 3600


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
    base_s: int = 5  # of the stored sums it is made from: 5 s steps, minutes or hours

    @property
    def is_recent(self) -> bool:
        """Say whether the recent store, which keeps an hour, can hold all of it."""
        return self.step_s * self.steps <= HOUR_S

    @property
    def coarse(self) -> Window:
        """Give the same stretch in steps of at least a minute, for what is kept by the minute."""
        if self.base_s >= MINUTE_S:
            return self
        end_s = self.end_s // MINUTE_S * MINUTE_S
        steps = self.step_s * self.steps // MINUTE_S
        return Window(end_s=end_s, step_s=MINUTE_S, steps=steps, span_s=MINUTE_S, base_s=MINUTE_S)

    @property
    def first_s(self) -> int:
        """Give the beginning of the first stored step that the first point needs."""
        return (self.start_s - (self.span_s - self.step_s)) // self.base_s * self.base_s

    @property
    def start_s(self) -> int:
        """Give the beginning of the first step."""
        return self.end_s - self.step_s * self.steps

    @property
    def times(self) -> list[int]:
        """Give the end of each step, in Unix seconds."""
        return [self.start_s + self.step_s * (i + 1) for i in range(self.steps)]


# Name in the URL: (length, step, span of one point, base), in seconds. At most 300 points a trace,
# from at most 1,440 stored steps. An hour is drawn from minutes: sixty reads instead of 720.
WINDOWS: Mapping[str, tuple[int, int, int, int]] = {
    "5m": (300, 5, 15, 5),
    "15m": (900, 5, 30, 5),
    "1h": (3600, MINUTE_S, MINUTE_S, MINUTE_S),
    "6h": (6 * 3600, 120, 120, MINUTE_S),
    "24h": (24 * 3600, 600, 600, MINUTE_S),
    "7d": (7 * 86400, HOUR_S, HOUR_S, HOUR_S),
    "30d": (30 * 86400, 3 * HOUR_S, 3 * HOUR_S, HOUR_S),
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

    @property
    def newest_s(self) -> int | None:
        """Give the end of the newest step of which anything is known, in Unix seconds."""
        columns = list(zip(self.window.times, *self.series.values(), strict=True))
        known = (at for at, *values in reversed(columns) if any(v is not None for v in values))
        return next(known, None)

    def latest(self, name: str) -> float | None:
        """Give the newest finite point of a series."""
        known = (v for v in reversed(self.series.get(name, ())) if v is not None)
        return next((v for v in known if math.isfinite(v)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStep:
    """One replica in one step: the engine's gauges and what was added meanwhile.

    Of a step the gauges are the last ones told, of a minute their means.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_max: float | None = None  # of a minute
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int | None = None  # None: its engine does not count them


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStep:
    """One pool in one step or minute, over all agents: new samples by bucket and counts."""

    histograms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    shed: int = 0
    replicas: Mapping[str, ReplicaStep] = field(default_factory=dict)
    # Of a minute: requests by second of the step's beginning, for steps that somebody reported.
    reported: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """One GPU's readings in one step."""

    utilization: float | None = None
    memory_used_bytes: float | None = None
    temperature_celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """All that was told of one minute: subjects as `packing` names them, GPUs by agent and step."""

    subjects: Mapping[str, PoolStep]
    gpus: Mapping[str, Mapping[int, Mapping[int, GpuStep]]]
