"""A Redis and a Prometheus of the tests' own, and reports to book."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.telemetry import series, source
from controlplane.telemetry.recent import RecentStore
from controlplane.telemetry.rolling import pool_figures
from controlplane.telemetry.snapshots import SeriesSet, Window
from routing_agent import wire
from tests.fakes.prometheus import FakePrometheus
from tests.redis_server import RedisServer

T0 = 1_800_000_000.0  # a whole minute


def report(number: int = 1, **given: Any) -> wire.Report:
    """A report of agent `agt-1`."""
    defaults: dict[str, Any] = {"agent": "agt-1", "started_at": 5.0, "sent_at": 0.0}
    return wire.Report(number=number, **(defaults | given))


def replica(**given: Any) -> wire.ReplicaReport:
    """A replica `rpl-1` of pool `chat`."""
    return wire.ReplicaReport(**({"replica": "rpl-1", "pool": "chat"} | given))


def delta(**given: Any) -> wire.PoolDelta:
    """What pool `chat` did."""
    return wire.PoolDelta(**({"pool": "chat", "version": "v1"} | given))


@pytest.fixture
def store(redis_server: RedisServer) -> RecentStore:
    """An empty recent store; it waits longer than in production: a busy machine is no outage."""
    found = RecentStore(redis_server.url, timeout_s=5.0)
    found._redis.flushall()
    return found


@pytest.fixture
def prometheus_server() -> Iterator[FakePrometheus]:
    """A fake Prometheus."""
    server = FakePrometheus()
    yield server
    server.stop()


def drawn(name: str, steps: Any, window: Window) -> SeriesSet:
    """Draw one chart from a pool's steps."""
    frames = [pool_figures(s, window.base_s) if s else None for s in steps]
    return series.chart(name, series.points(frames, window), window)


def drawn_of(replica_id: str, name: str, steps: Any, window: Window) -> SeriesSet:
    """Draw one chart of one replica from its pool's steps."""
    frames = [source.of_replica(s, replica_id, window.base_s) for s in steps]
    return series.chart(name, series.points(frames, window), window)
