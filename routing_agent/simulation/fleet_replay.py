"""A trace over a fleet: agents choose with the code that runs live, engines compute in their time.

Nothing here waits: the clock goes from one arrival, scrape or end of a run to the next. The same
plan and trace always give the same flights.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from routing_agent.core import load
from routing_agent.core.attention import TICK_S
from routing_agent.core.choose import choose
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.waiting import WaitingLine, Wants
from routing_agent.simulation.changes import Change, Resize, Slowdown
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.knowledge import (
    Exchange,
    Knowledge,
    KnowledgeName,
    Oracle,
    OwnView,
    Truth,
)
from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.sequences import Event, Request
from routing_agent.simulation.traces.model import TraceRequest
from routing_agent.simulation.virtual import VirtualEngines
from routing_agent.wire import Endpoint, ModelRoute, Pool, PoolSettings, RoutingTable, WeightedPool

POOL = "replay"
TOO_LARGE = "no replica's KV cache could hold it"

Progress = Callable[[int], None]  # is told how many requests have come


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """A fleet to replay a trace over."""

    replicas: int
    profile: Profile
    settings: PoolSettings = field(default_factory=PoolSettings)
    knowledge: KnowledgeName = "agent"
    agents: int = 1
    seed: int = 0
    prefill_only: bool = False  # an answer is its first token
    serving: int | None = None  # at first only so many replicas take requests; None: all
    changes: tuple[Change, ...] = ()  # in order of time


@dataclass(slots=True)
class _Agent:
    fleet: Fleet
    pool: PoolState
    knowledge: Knowledge
    chance: random.Random
    line: WaitingLine[Flight] = field(default_factory=WaitingLine)  # held back: `core.holding`


class FleetReplay:
    """One run of a plan."""

    def __init__(self, plan: ReplayPlan) -> None:
        self._plan = plan
        self._serving = plan.replicas if plan.serving is None else plan.serving
        self._changes = deque(plan.changes)
        self._engines = VirtualEngines(plan.profile, plan.replicas, self._note)
        self._truth = Truth(self._engines)
        self._chance = random.Random(plan.seed)  # noqa: S311 - not a secret
        self._exchange = Exchange() if plan.agents > 1 else None
        self._agents = [self._agent(0.0) for _ in range(plan.agents)]
        self._numbers = {r.id: n for n, r in enumerate(self._agents[0].pool.replicas)}
        self._flights: list[Flight] = []

    def run(
        self, requests: Sequence[TraceRequest], progress: Progress | None = None
    ) -> list[Flight]:
        """Send every request at its time and let all work end; give what became of each."""
        for number, request in enumerate(requests):
            while self._changes and self._changes[0].at_s <= request.at_s:
                self._advance(self._changes[0].at_s)
                self._change(self._changes.popleft())
            self._advance(request.at_s)
            self._send(number, request)
            if progress is not None:
                progress(number + 1)
        while self._is_holding():
            self._advance(self._engines.now + 2 * TICK_S)
        self._engines.advance(float("inf"))
        return self._flights

    def _change(self, change: Change) -> None:
        if isinstance(change, Resize):
            self._serving = change.replicas
            for agent in self._agents:
                agent.fleet.apply(_table(self._plan, self._serving), now=change.at_s, wall=0.0)
        elif isinstance(change, Slowdown):
            self._engines.schedulers[change.engine].slowdown = change.factor
        else:
            self._exchange = Exchange() if self._plan.agents > 1 else None
            lines = [agent.line for agent in self._agents]
            self._agents = [self._agent(change.at_s) for _ in lines]
            for agent, line in zip(self._agents, lines, strict=True):
                agent.line = line

    def _agent(self, now: float) -> _Agent:
        fleet = Fleet()
        fleet.apply(_table(self._plan, self._serving), now=now, wall=0.0)
        pool = fleet.pools[POOL]
        chance = random.Random(self._chance.random())  # noqa: S311 - not a secret
        knowledge: Knowledge
        if self._plan.knowledge == "oracle":
            knowledge = Oracle(pool, self._truth)
        else:
            knowledge = OwnView(pool, self._engines, chance, self._exchange, now=now)
        return _Agent(fleet, pool, knowledge, chance)

    def _is_holding(self) -> bool:
        return any(agent.line for agent in self._agents)

    def _advance(self, until: float) -> None:
        """Let time pass; who is held back is looked at again at each tick, as live."""
        while self._is_holding() and self._engines.now + TICK_S < until:
            self._look_on(self._engines.now + TICK_S)
            for agent in self._agents:
                self._wake(agent, self._engines.now)
        self._look_on(until)

    def _look_on(self, until: float) -> None:
        while True:
            due, agent = min(
                ((a.knowledge.next_look(), n) for n, a in enumerate(self._agents)),
            )
            if due > until:
                break
            self._engines.advance(due)
            self._agents[agent].knowledge.look(due)
        self._engines.advance(until)

    def _send(self, number: int, request: TraceRequest) -> None:
        place = self._chance.randrange(len(self._agents))
        agent, now = self._agents[place], request.at_s
        tokens = request.prompt_tokens + load.output_tokens(None)
        flight = Flight(number=number, request=request, agent=place, charged_tokens=tokens)
        self._flights.append(flight)
        flight.asked = self._asked(request, tokens)
        self._wake(agent, now)
        if not self._bind(agent, flight, now):
            agent.line.join(flight, _wants(flight))

    def _wake(self, agent: _Agent, now: float) -> None:
        """Let those that are held back go as far as there is room, in their order."""
        while (flight := agent.line.next()) is not None:
            if not self._bind(agent, flight, now):
                agent.line.join(flight, _wants(flight))
                return

    def _bind(self, agent: _Agent, flight: Flight, now: float) -> bool:
        """Send a request where its agent wants it; false if it is held back."""
        assert flight.asked is not None  # noqa: S101 - set when it came
        agent.knowledge.before_choice(now)
        choice = choose(flight.asked, agent.pool, now=now, chance=agent.chance)
        flight.reason = choice.reason
        if choice.replica is not None:
            flight.replica = choice.replica
            self._submit(flight, self._numbers[choice.replica.id])
            if flight.engine is not None:
                agent.knowledge.placed(flight, now)
        return not choice.is_held

    def _asked(self, request: TraceRequest, tokens: int) -> RouteRequest:
        asked = RouteRequest(
            tokens,
            request.session,
            prompt_tokens=request.prompt_tokens,
            blocks=request.blocks,
            block_tokens=float(self._plan.profile.block_tokens),
        )
        asked.may_wait = True
        return asked

    def _submit(self, flight: Flight, engine: int) -> None:
        request = flight.request
        work = Request(
            id=str(flight.number),
            prompt_tokens=request.prompt_tokens,
            output_tokens=1 if self._plan.prefill_only else max(1, request.output_tokens),
            block_hashes=request.blocks,
        )
        if work.prompt_tokens + work.output_tokens > self._plan.profile.longest_request_tokens:
            flight.reason = TOO_LARGE
            return
        flight.engine = engine
        flight.expected_cached_tokens = self._truth.expected_cached_tokens(engine, request.blocks)
        self._truth.submitted(engine, flight)
        self._engines.submit(engine, work)

    def _note(self, engine: int, event: Event) -> None:
        flight = self._flights[int(event.request_id)]
        if event.kind == "token":
            flight.first_token_at = event.at
            self._truth.computed(engine, flight)
            self._agents[flight.agent].knowledge.answered(flight, event.at)
        elif event.kind == "started":
            scheduler = self._engines.schedulers[engine]
            flight.cached_tokens = scheduler.cached_tokens(event.request_id)
            self._truth.started(engine, flight)
        elif event.kind == "finished":
            flight.ended_at = event.at
            self._agents[flight.agent].knowledge.ended(flight)
        elif event.kind == "preempted":
            flight.preemptions += 1


def _wants(flight: Flight) -> Wants:
    return Wants(5, flight.request.at_s, "", flight.request.prompt_tokens)


def _table(plan: ReplayPlan, serving: int) -> RoutingTable:
    """Give the table; replicas that do not serve are warming up: as good as not there."""
    endpoints = tuple(
        Endpoint(
            replica=f"r{number:04}",
            url=f"http://replica-{number}:8000",
            state="ready" if number < serving else "warming",
        )
        for number in range(plan.replicas)
    )
    pool = Pool(
        name=POOL,
        model="replayed",
        version="1",
        overload="queue",
        settings=plan.settings,
        endpoints=endpoints,
    )
    model = ModelRoute(model="replayed", split=(WeightedPool(pool=POOL, weight=100),))
    return RoutingTable(
        lineage="replay",
        epoch=1,
        fleet_revision=1,
        hash_seed=plan.seed,
        open_access=True,
        models=(model,),
        pools=(pool,),
    )
