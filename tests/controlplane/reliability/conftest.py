"""Minutes of pools, as the roll-up leaves them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.fleet.models import Agent
from controlplane.reliability import services
from controlplane.reliability.selectors import throughput
from controlplane.telemetry import recent
from controlplane.telemetry.models import RollUp, Step
from routing_agent import wire
from tests.factories import make_agent
from tests.redis_server import RedisServer

MinuteOf = Callable[..., datetime]


@pytest.fixture
def minute(db: None) -> MinuteOf:
    """Give a function that stores one minute of a pool, and gives its beginning."""

    def store(
        pool: str = "chat",
        *,
        at: datetime | None = None,
        step: Step = Step.MINUTE,
        version: str = "v1",
        **given: Any,
    ) -> datetime:
        begin = (at or timezone.now() - timedelta(minutes=3)).replace(second=0, microsecond=0)
        statuses = given.pop("statuses", {"200": 100})
        figures = Figures(
            **(
                {
                    "covered_s": int(step),
                    "requests": sum(statuses.values()),
                    "failed": sum(n for s, n in statuses.items() if s.startswith("5")),
                    "statuses": statuses,
                }
                | given
            )
        )
        RollUp.objects.update_or_create(
            level="pool",
            subject=pool,
            version=version,
            step_s=step,
            at=begin,
            defaults={
                "covered_s": figures.covered_s,
                "requests": figures.requests,
                "failed": figures.failed,
                "figures": rollups.packed(figures),
            },
        )
        return begin

    return store


class Telling:
    """Books reports of one agent as the control plane gets them."""

    def __init__(self, agent: str) -> None:
        self.agent, self.number = agent, 0
        self.last: dict[str, Any] = {}

    def tell(
        self,
        pool: str = "chat",
        *,
        at: float | None = None,
        replicas: tuple[wire.ReplicaReport, ...] = (),
        waiting: tuple[wire.PoolWaiting, ...] | None = None,
        **delta: Any,
    ) -> None:
        """Book one report: what a pool did, and how its replicas are."""
        self.number += 1
        self.last = {"pool": pool, "replicas": replicas, **delta}
        told = wire.PoolDelta(pool=pool, version="v1", **delta)
        report = wire.Report(
            agent=self.agent,
            number=self.number,
            started_at=5.0,
            sent_at=0.0,
            pools=(told,) if delta else (),
            replicas=replicas,
            waiting=waiting,
        )
        recent.store().book(report, time.time() if at is None else at)

    def judge(self, after_s: float = 0) -> str:
        """Judge alerts so many seconds from now, with the agent telling the same until then."""
        with time_machine.travel(datetime.now(UTC) + timedelta(seconds=after_s)):
            if after_s and self.last:
                self.tell(**self.last)
            Agent.objects.filter(public_id=self.agent).update(last_seen_at=timezone.now())
            return services.judge_alerts(timezone.now())


@pytest.fixture
def telling(redis_server: RedisServer, settings: Any, db: None) -> Telling:
    """An empty recent store, and an agent that reports to it."""
    settings.REDIS_URL = redis_server.url
    settings.REDIS_TIMEOUT_S = 5.0
    recent.store()._redis.flushall()
    throughput._baselines.clear()
    return Telling(make_agent("node-1").public_id)
