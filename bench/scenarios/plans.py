"""The scenarios: who asks what when, and what happens to the fleet meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.scenarios.workload import BLOCK_TOKENS, Rates, Workload
from routing_agent.simulation.changes import Change, FreshAgents, Resize, Slowdown
from routing_agent.simulation.fleet_replay import ReplayPlan
from routing_agent.simulation.profiles import prefill_only
from routing_agent.simulation.traces.model import TraceRequest, in_order
from routing_agent.wire import PolicyName, PoolSettings

RATE: Final = 3650.0  # prompt tokens a second of a replica
KV_BLOCKS: Final = 8000  # of 64 tokens
CONVERSATIONS: Final = 0.33  # new ones a second for each replica: 40 % of it with good hits


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When it begins to matter, when that is over, when the replay ends. Seconds."""

    before: float = 150.0  # caches fill until a third of it, then it is steady
    event: float = 120.0
    after: float = 150.0

    @property
    def begins(self) -> float:
        """When what the scenario is about begins."""
        return self.before

    @property
    def ends(self) -> float:
        """When that is over."""
        return self.before + self.event

    @property
    def over(self) -> float:
        """When the last request comes."""
        return self.before + self.event + self.after

    def shortened(self, speed: float) -> Times:
        """Give the times of what goes so many times as fast."""
        return Times(before=self.before / speed, event=self.event / speed, after=self.after / speed)


QUICK: Final = Times(before=60.0, event=30.0, after=40.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A scenario ready to be replayed."""

    replicas: int
    requests: tuple[TraceRequest, ...]
    changes: tuple[Change, ...] = ()
    serving: int | None = None
    marked: frozenset[int] = frozenset()  # sessions that are not part of the usual traffic

    def plan(self, policy: PolicyName, seed: int = 0, speed: float = 1.0) -> ReplayPlan:
        """Give the replay of this course by a policy that knows what an agent does.

        `speed` is that of the replicas, as a multiple of the usual one.
        """
        return ReplayPlan(
            replicas=self.replicas,
            profile=prefill_only(RATE * speed, kv_blocks=KV_BLOCKS, block_tokens=BLOCK_TOKENS),
            settings=PoolSettings(policy=policy),
            seed=seed,
            prefill_only=True,
            serving=self.serving,
            changes=self.changes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing that happens."""

    name: str
    title: str
    course: Callable[[Times, int], Course]


def hot_prefix(times: Times, replicas: int) -> Course:
    """A thousand sessions begin with a text of 8,000 tokens; their own words fill a replica."""
    work = Workload()
    usual = _usual(work, times, replicas)
    rates = _only_between(times, 1000.0 / 120.0)
    hot = work.alike(8000, 448, rates, times.over, name="hot")
    return Course(
        replicas=replicas,
        requests=in_order([*usual, *hot]),
        marked=frozenset(one.session for one in hot),
    )


def scaled(times: Times, replicas: int) -> Course:
    """Half of the replicas serve; three times the load comes, more than they can compute; a while
    later all serve; then the load falls again, and when that has lasted half of them go.
    """
    work, half = Workload(), replicas // 2
    usual = CONVERSATIONS * half
    rates = ((0.0, usual), (times.begins, usual * 3), (times.ends, usual))
    late = times.event / 6  # as long as it took to see it and to start replicas
    return Course(
        replicas=replicas,
        serving=half,
        requests=in_order(work.conversations(rates, times.over)),
        changes=(
            Resize(at_s=times.begins + late, replicas=replicas),
            Resize(at_s=times.ends + times.after / 2, replicas=half),
        ),
    )


def tired(times: Times, replicas: int) -> Course:
    """One replica computes at a third of its speed for a while."""
    return Course(
        replicas=replicas,
        requests=in_order(_usual(Workload(), times, replicas)),
        changes=(
            Slowdown(at_s=times.begins, engine=0, factor=3.0),
            Slowdown(at_s=times.ends, engine=0, factor=1.0),
        ),
    )


def flood(times: Times, replicas: int) -> Course:
    """Prompts of 3,000 tokens that nobody else has come on top: half a replica's work for each."""
    work = Workload()
    usual = _usual(work, times, replicas)
    rates = _only_between(times, 0.5 * RATE * replicas / 3000)
    unique = work.alike(0, 3000, rates, times.over, name="unique")
    return Course(
        replicas=replicas,
        requests=in_order([*usual, *unique]),
        marked=frozenset(one.session for one in unique),
    )


def fresh_agent(times: Times, replicas: int) -> Course:
    """The agent is another process from a moment on: it knows of no session and no prefix."""
    return Course(
        replicas=replicas,
        requests=in_order(_usual(Workload(), times, replicas)),
        changes=(FreshAgents(at_s=times.begins),),
    )


def _usual(work: Workload, times: Times, replicas: int) -> list[TraceRequest]:
    return work.conversations(((0.0, CONVERSATIONS * replicas),), times.over)


def _only_between(times: Times, rate: float) -> Rates:
    return ((0.0, 0.0), (times.begins, rate), (times.ends, 0.0))


SCENARIOS: Final = (
    Scenario(name="hot-prefix", title="A hot prefix from a thousand sessions", course=hot_prefix),
    Scenario(name="scaled", title="A fleet scaled from 4 to 8 and back", course=scaled),
    Scenario(name="third-of-speed", title="A replica at a third of its speed", course=tired),
    Scenario(name="flood", title="A flood of unique prompts", course=flood),
    Scenario(name="fresh-agent", title="An agent that just started", course=fresh_agent),
)
