"""Two versions of a model in two pools, an agent that obeys, and figures in a real Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest

from controlplane.catalog.models import ModelVersion
from controlplane.fleet.models import Agent, Pool, TrafficSplit
from controlplane.rollouts import services
from controlplane.rollouts.models import Rollout
from controlplane.routing.selectors import fleet_revision, publication
from controlplane.telemetry import recent
from routing_agent import wire
from tests.factories import WHY, make_agent, make_pool, make_replica
from tests.redis_server import RedisServer


@pytest.fixture
def figures(redis_server: RedisServer, settings: Any) -> Figures:
    """An empty recent store that the product reads, and a way to book what pools did."""
    settings.REDIS_URL = redis_server.url
    settings.REDIS_TIMEOUT_S = 5.0
    settings.ROLLOUT_INTERVAL_S = 0.0
    store = recent.store()
    store._redis.flushall()
    return Figures()


class Figures:
    """Books reports of agent `agt-1`."""

    number = 0

    def book(self, pool: str, requests: int, *, latency_s: float = 0.2, failed: int = 0) -> None:
        """Say that a pool answered so many requests some seconds ago: a whole step."""
        self.number += 1
        bucket = wire.latency_bucket(latency_s)
        statuses = {"200": requests - failed, "500": failed}
        delta = wire.PoolDelta(
            pool=pool,
            version="v",
            requests={status: n for status, n in statuses.items() if n},
            ttft={bucket: requests},
            tpot={wire.latency_bucket(latency_s / 10): requests},
        )
        report = wire.Report(
            agent="agt-1", number=self.number, started_at=5.0, sent_at=0.0, pools=(delta,)
        )
        recent.book(report, time.time() - 6.0)


def make_pair() -> tuple[Pool, Pool]:
    """Stable `chat-a` with everything, canary `chat-b` of another version with nothing."""
    stable = make_pool("chat-a")
    make_replica(stable)
    version = ModelVersion.objects.create(model=stable.model_version.model, name="v2")
    canary = Pool.objects.create(slug="chat-b", model_version=version, overload_policy="queue")
    make_replica(canary)
    return stable, canary


@pytest.fixture
def pair(db: None) -> tuple[Pool, Pool]:
    """See `make_pair`."""
    return make_pair()


@pytest.fixture
def agent(db: None) -> Agent:
    """A live agent; `obey` lets it run the newest table."""
    return make_agent("node-1")


def obey(agent: Agent) -> None:
    """Let an agent say that it runs a table that covers everything."""
    Agent.objects.filter(pk=agent.pk).update(
        applied_revision=fleet_revision(), reported_lineage=publication().lineage
    )


def weights() -> dict[str, float]:
    """Give the split as it is."""
    return dict(TrafficSplit.objects.values_list("pool__slug", "weight"))


def started(**given: Any) -> Rollout:
    """A rollout from `chat-a` to `chat-b`."""
    rules = {"stable_pool": "chat-a", "canary_pool": "chat-b", "bake_s": 0.0, "min_requests": 50}
    return services.start_rollout(**(rules | given), **WHY)
