"""What a scaling decision is made from: policy, members, demand. Absent figures are None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.replica_states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a pool scales. Defaults are the product's; ratios are 0 to 1."""

    enabled: bool = True
    wanted_by_people: int = 0  # what holds while it is not enabled
    min_replicas: int = 1
    max_replicas: int = 4
    queue_wait_limit_s: float = 0.5
    kv_usage_limit: float = 0.85
    queue_length_limit: float = 5.0  # requests waiting for each ready replica
    utilisation_low: float = 0.70
    utilisation_high: float = 0.85
    cooldown_s: float = 15.0
    tolerance_ratio: float = 0.1
    step_factor: float = 2.0
    max_step: int | None = None  # replicas added at once; None: as the factor says
    scale_down_after_s: float = 300.0

    def bounded(self, replicas: int) -> int:
        """Give the nearest number within the bounds."""
        return min(max(replicas, self.min_replicas), self.max_replicas)

    @property
    def bounds(self) -> str:
        """Give the bounds in words."""
        return f"{self.min_replicas} to {self.max_replicas}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is freshly known of one replica's engine."""

    kv_usage: float | None  # None: engines of its make have no such gauge
    waiting: int
    running: int = 0
    max_running: int | None = None  # None: its engine does not tell
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica of the pool, stopped ones left out."""

    replica: str
    state: State
    is_spare: bool = False
    is_run: bool = True  # by an agent; what somebody else runs counts, and is left alone
    is_lost: bool = False  # its node is not heard and it does not serve
    ready_at: datetime | None = None
    figures: Figures | None = None  # None: `missing` says why
    missing: str = ""
    inflight_tokens: int = 0
    zone: str = ""
    is_warmed: bool = False  # gave a first completion
    drained_by_scaling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What requests met lately, over all agents: the last window only, never an older peak."""

    agent_wait_p95_s: float | None = None  # None: no request in the window
    engine_wait_p95_s: float | None = None
    requests: int | None = None
    waiting: int | None = None  # in the agents' queues now; None: nobody tells
    oldest_wait_s: float = 0.0  # of those who wait now
    age_s: float | None = None
    missing: str = ""  # why nothing at all is known
    note: str = ""

    @property
    def is_idle(self) -> bool:
        """Say whether nobody asked for anything in the window."""
        return self.requests == 0 and self.waiting == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What earlier decisions left behind."""

    scaled_at: datetime | None = None
    below_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A number that a person wants until a moment."""

    count: int
    by: str
    reason: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One figure of a decision with its limit and its age."""

    name: str
    unit: str  # s, ratio, requests
    value: float | None
    limit: float | None = None  # None: nothing is decided by it alone
    age_s: float | None = None
    note: str = ""

    @property
    def pressure(self) -> float:
        """Give the value over its limit; 0 where one of them is not known."""
        return self.value / self.limit if self.value is not None and self.limit else 0.0

    def sentence(self) -> str:
        """Say it with its limit."""
        return f"{self.name} {self._shown(self.value)} over {self._shown(self.limit)}"

    def _shown(self, value: float | None) -> str:
        value = value or 0.0
        if self.unit == "requests":
            return f"{value:.3g}"
        return f"{value * 100:.0f} %" if self.unit == "ratio" else f"{value:.2f} s"


def queue_wait_s(demand: Demand) -> float | None:
    """Give the P95 of the wait in agents and engines together; None if nobody asked or waits.

    The two P95 are added: never less than the P95 of the sum for waits that come together. Who
    still waits is in no histogram yet, so the longest present wait counts as well.
    """
    known = [w for w in (demand.agent_wait_p95_s, demand.engine_wait_p95_s) if w is not None]
    if not known and not demand.waiting:
        return None
    return max(sum(known), demand.oldest_wait_s)


def queue_length(members: Sequence[Member], demand: Demand) -> float | None:
    """Give the requests that wait in agents and engines for each ready replica; None: not known."""
    ready = _ready(members)
    known = [m.figures.waiting for m in ready if m.figures is not None]
    if not known or demand.waiting is None:
        return None
    # Engines that do not tell are taken to have as many in their queues as the others.
    return demand.waiting / len(ready) + sum(known) / len(known)


def mean_kv_usage(members: Sequence[Member]) -> float | None:
    """Give the mean over ready replicas whose figures are known: starting ones are not idle."""
    figures = [m.figures for m in _ready(members) if m.figures is not None]
    known = [f.kv_usage for f in figures if f.kv_usage is not None]
    return sum(known) / len(known) if known else None


def batch_usage(members: Sequence[Member]) -> float | None:
    """Give running and waiting requests over what the engines compute at once, where they tell."""
    known = [m.figures for m in _ready(members) if m.figures and m.figures.max_running]
    if not known:
        return None
    return min(
        1.0, sum(f.running + f.waiting for f in known) / sum(f.max_running or 0 for f in known)
    )


def _ready(members: Sequence[Member]) -> list[Member]:
    return [m for m in members if m.state is State.READY and not m.is_spare]
