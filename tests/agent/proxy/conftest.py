"""A proxy between scripted engines and raw clients, all in the test's own loop."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.proxy.server import Proxy
from tests.agent.proxy.client import RawClient, Reply, ask
from tests.fakes.engine import FakeEngine, Script, obliging


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def until(condition: Callable[[], Any], *, limit_s: float = 10.0) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - a condition anywhere, no event to wait for
            await asyncio.sleep(0.005)


class Rig:
    """A fleet of scripted engines behind one proxy."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.metrics = Metrics()
        self.records: list[FinishedRequest] = []
        self.proxy = Proxy(self.fleet, self.metrics, on_finished=self.records.append)
        self.engines: list[FakeEngine] = []
        self.table = wire.RoutingTable(lineage="l", epoch=1, fleet_revision=0, open_access=True)
        self.port = 0

    async def start(self, *scripts: Script, engine: dict[str, Any] | None = None) -> Rig:
        """Start one engine per script, and the proxy."""
        for script in scripts or (obliging(),):
            self.engines.append(await FakeEngine.start(script, **(engine or {})))
        self.port = await self.proxy.start("127.0.0.1", 0)
        self.configure()
        return self

    def configure(self, *, table: dict[str, Any] | None = None, **settings: Any) -> None:
        """Apply a table of one pool "p" for model "m" over all engines, with these settings."""
        pool_fields = {
            name: settings.pop(name)
            for name in ("overload", "fallback_pool", "model")
            if name in settings
        }
        pool = wire.Pool(
            **{"name": "p", "model": "m", "version": "1", "overload": "queue", **pool_fields},
            settings=wire.PoolSettings(**{"retry_backoff_s": 0.01, "slow_start_s": 0, **settings}),
            endpoints=tuple(self.endpoint(i) for i in range(len(self.engines))),
        )
        route = wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),))
        self.apply(**{"models": (route,), "pools": (pool,), **(table or {})})

    def apply(self, **changes: Any) -> None:
        """Apply the current table with changes."""
        self.table = replace(self.table, epoch=self.table.epoch + 1, **changes)
        change = self.fleet.apply(self.table, now=time.monotonic(), wall=time.time())
        assert change.faults == (), change.faults

    def endpoint(self, i: int, **changes: Any) -> wire.Endpoint:
        return wire.Endpoint(replica=f"r{i}", url=self.engines[i].url, **changes)

    def set_endpoints(self, *endpoints: wire.Endpoint) -> None:
        """Replace the endpoints of the first pool."""
        first, *rest = self.table.pools
        self.apply(pools=(replace(first, endpoints=endpoints), *rest))

    async def ask(self, body: Any, **options: Any) -> Reply:
        return await ask(self.port, body, **options)

    def replica(self, i: int = 0) -> Any:
        return self.fleet.replicas[f"r{i}"]

    @property
    def calls(self) -> list[int]:
        """Requests per engine."""
        return [len(engine.calls) for engine in self.engines]

    def assert_nothing_is_left(self) -> None:
        """Check that every charge, place and queue was given back exactly."""
        for replica in (*self.fleet.replicas.values(), *self.fleet.leaving):
            assert (replica.inflight_requests, replica.inflight_tokens) == (0, 0), replica.id
            assert replica.prefill.waiting == 0
            assert not replica.breaker.trial_running
        for gate in self.fleet.gates.values():
            assert gate.running == 0
        assert self.proxy.running_requests == 0
        for line in self.proxy._lines.values():
            assert len(line) == 0

    async def stop(self) -> None:
        try:
            await until(lambda: self.proxy.running_requests == 0)
            self.assert_nothing_is_left()
        finally:  # what stays open would hold up the end of the loop
            await self.proxy.close()
            await RawClient.close_all()
            for engine in self.engines:
                await engine.stop()
        await until(lambda: self.proxy.open_connections == 0)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the product's event loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.stop()
