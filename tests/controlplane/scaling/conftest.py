"""Fake agents that start engines, a Redis of the test's own, and a pool that scales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.domain.replica_states import State
from controlplane.fleet.models import Agent, Node, Replica
from controlplane.routing import services as routing
from controlplane.scaling import services
from controlplane.scaling.models import ScalingDecision, ScalingPolicy
from routing_agent import wire
from tests.controlplane.routing.conftest import (
    _own_key_and_fresh_circuits,
    at_once,
    deliver_all,
    redis_server,
    register,
)
from tests.factories import WHY, make_pool
from tests.fakes.agent import FakeAgent

__all__ = ["_own_key_and_fresh_circuits", "at_once", "redis_server"]

FACTS = wire.ExecutorFacts(
    programs=("simulated",), address="127.0.0.1", first_port=8400, last_port=8409
)


class Fleet:
    """Some nodes whose agents start engines, one pool, and time that the test moves."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.now = timezone.now()
        self.agents: list[FakeAgent] = []
        self.waiting: tuple[wire.PoolWaiting, ...] = ()
        self.silent: set[str] = set()  # agents that say nothing
        self.figures: dict[str, Any] = {"kv_usage": 0.3, "engine_waiting": 0, "engine_running": 1,
                                        "scrape_age_s": 0.5}  # fmt: skip
        self.own: dict[str, dict[str, Any]] = {}  # figures of one replica
        self.queue_wait: dict[int, int] = {}
        self.pool = make_pool()

    def add_node(self, name: str, *, zone: str = "", gpus: int = 2) -> FakeAgent:
        agent = self.stack.enter_context(FakeAgent(name).running())
        cards = [{"index": i, "model": "A100", "memory_bytes": 80 * 10**9} for i in range(gpus)]
        Node.objects.create(name=name, zone=zone, gpus=cards)
        register(agent)
        self.agents.append(agent)
        return agent

    def policy(self, **given: Any) -> ScalingPolicy:
        fields = {"program": "simulated", "min_replicas": 1, "max_replicas": 4,
                  "scale_down_after_s": 60.0} | given  # fmt: skip
        return services.set_policy(pool="chat", **fields, **WHY)

    def replicas(self, *states: State) -> list[Replica]:
        rows = Replica.objects.filter(pool=self.pool)
        return list(rows.filter(state__in=states) if states else rows)

    def report(self) -> None:
        """Have every agent obey the newest table and say what it sees: what runs is healthy."""
        routing.publish_if_behind()
        deliver_all(*(a for a in self.agents if a.name not in self.silent))
        for agent in self.agents:
            if agent.name in self.silent:
                continue
            seen = tuple(self._seen(r) for r in self.replicas())
            first = agent is self.agents[0]
            deltas = (wire.PoolDelta(pool="chat", version="v1", requests={"200": 1},
                                     queue_wait=self.queue_wait),)  # fmt: skip
            routing.book_report(
                report=agent.report(
                    node=wire.NodeFacts(executor=FACTS),
                    replicas=seen,
                    engines=tuple(agent.engines.values()),
                    waiting=self.waiting if first else (),
                    pools=deltas if first and self.queue_wait else (),
                ),
                token=agent.token,
            )

    def _seen(self, row: Replica) -> wire.ReplicaReport:
        figures = self.figures | self.own.get(row.public_id, {})
        runs = row.state != State.LOADING or any(row.public_id in a.engines for a in self.agents)
        health = "healthy" if runs else "unknown"
        return wire.ReplicaReport(
            replica=row.public_id, pool="chat", health=health, warmed=runs, **figures
        )

    def tick(self, seconds: float = 5.0) -> ScalingDecision:
        """Let the loops run once, after some time."""
        self.report()
        routing.reconcile_replicas()
        self.now += timedelta(seconds=seconds)
        heard = [a.agent for a in self.agents if a.name not in self.silent]
        Agent.objects.filter(public_id__in=heard).update(last_seen_at=self.now)
        services.decide_all(self.now)
        services.execute_all(self.now)
        newest = ScalingDecision.objects.first()
        assert newest is not None
        return newest

    def settle(self, ready: int) -> None:
        """Let the loops run until so many are ready."""
        for _ in range(6):
            self.tick()
            self.report()
            routing.reconcile_replicas()
            if len(self.replicas(State.READY)) == ready:
                return
        raise AssertionError([(r.public_id, r.state, r.state_reason) for r in self.replicas()])

    def actions(self, kind: type) -> list[wire.Action]:
        return [a for agent in self.agents for a in agent.actions if isinstance(a.do, kind)]


@pytest.fixture
def fleet(db: None, redis_server: Any) -> Iterator[Fleet]:
    """Two nodes in two zones."""
    with ExitStack() as stack:
        made = Fleet(stack)
        made.add_node("node-1", zone="a")
        made.add_node("node-2", zone="b")
        yield made
