"""A node's adapters, from the table to the answer: fetched, loaded, verified, served, unloaded.

Engines, control plane and clients are on real sockets; prober, scraper, keeper and relay are the
agent's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from routing_agent import wire
from routing_agent.control.packages import PackageStore
from routing_agent.core import upkeep
from routing_agent.core.chance import EvenOdds
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica_report import report_of
from routing_agent.engine.keeper import AdapterKeeper
from routing_agent.engine.probe import Prober
from routing_agent.engine.scrape import Scraper
from routing_agent.http_client import HttpClient
from routing_agent.metrics import Metrics
from routing_agent.metrics_page import render
from routing_agent.proxy.server import Proxy
from tests.agent.adapter_files import publish
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.lora_engine import LOAD, UNLOAD, LoraEngine

QUICK = wire.PoolSettings(
    policy="round_robin",  # each replica is asked, however alike the questions
    probe_interval_s=0.05, probe_failures=1, probe_recoveries=1, scrape_interval_s=0.05,
    slow_start_s=0, retry_backoff_s=0.01, drain_limit_s=60,
)  # fmt: skip


class Node:
    """One agent's parts over scripted engines, all of them on its own node."""

    def __init__(self, folder: Path) -> None:
        self.fleet, self.metrics = Fleet(), Metrics()
        self.proxy = Proxy(self.fleet, self.metrics)
        self.control_plane = FakeControlPlane()
        self.control_plane.agents["token"] = "agent-1"
        self.engines: dict[str, LoraEngine] = {}
        self.folder = folder
        self.epoch = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Node:
        await self.control_plane.start()
        self.port = await self.proxy.start("127.0.0.1", 0)
        self.client, self.http = HttpClient(), httpx.AsyncClient(trust_env=False, timeout=10)
        packages = PackageStore(
            folder=self.folder, limit_bytes=10**7, url=self.control_plane.url, token="token",
            client=self.client, metrics=self.metrics,
        )  # fmt: skip
        self.keeper = AdapterKeeper(
            node="node-a", fleet=self.fleet, client=self.client, packages=packages,
            metrics=self.metrics, chance=EvenOdds(),
        )  # fmt: skip
        packages.in_use = self.keeper.digests_in_use
        prober = Prober(self.fleet, self.client, EvenOdds())
        scraper = Scraper(self.fleet, self.client, EvenOdds())
        loops = (self.keeper.run(), prober.run(), scraper.run())
        self.tasks = [asyncio.ensure_future(loop) for loop in loops]
        return self

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.http.aclose()
        await self.client.close()
        await self.proxy.close()
        await self.control_plane.stop()
        for engine in self.engines.values():
            await engine.stop()

    async def engine(self, name: str) -> LoraEngine:
        made = self.engines[name] = await LoraEngine().start()
        return made

    def wants(self, *adapters: wire.Adapter, on: tuple[str, ...] = (), **endpoint: Any) -> None:
        """Apply a table in which these replicas (else all) hold these adapters."""
        self.epoch += 1
        wanted = tuple(adapter.served_name for adapter in adapters)
        endpoints = tuple(
            wire.Endpoint(
                **{
                    "replica": name, "url": engine.url, "node": "node-a",
                    "adapters": wanted if not on or name in on else (), **endpoint,
                }
            )
            for name, engine in self.engines.items()
        )  # fmt: skip
        pool = wire.Pool(
            name="p", model="m", version="1", overload="queue", settings=QUICK, endpoints=endpoints
        )
        table = wire.RoutingTable(
            lineage="l", epoch=self.epoch, fleet_revision=0, open_access=True,
            models=(wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),)),),
            pools=(pool,),
            adapters=tuple(replace(one, shared_with=("local",)) for one in adapters),
        )  # fmt: skip
        change = self.fleet.apply(table, now=time.monotonic(), wall=time.time())
        assert change.faults == ()

    def states(self, adapter: wire.Adapter) -> dict[str, str]:
        """What this agent reports of an adapter, by replica."""
        return {
            replica.id: state.state
            for replica in self.fleet.replicas.values()
            for state in report_of(replica, time.monotonic()).adapter_states
            if state.served_name == adapter.served_name
        }

    async def loaded(self, adapter: wire.Adapter, *names: str) -> None:
        await until(
            lambda: (
                {n for n, s in self.states(adapter).items() if s == "loaded"}
                == (set(names) or set(self.engines))
            )
        )

    async def ask(self, model: str = "sql", **changes: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **changes}
        return await self.http.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)

    async def listed(self) -> list[str]:
        answer = await self.http.get(f"http://127.0.0.1:{self.port}/v1/models")
        return [model["id"] for model in answer.json()["data"]]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(upkeep, "FIRST_PAUSE_S", 0.1)
    made = await Node(tmp_path / "adapters").start()
    yield made
    await made.stop()


async def test_an_adapter_is_fetched_loaded_verified_and_served(node: Node) -> None:
    await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    answer = await node.ask()  # while it is being loaded: it waits for that
    assert answer.json()["choices"][0]["message"]["content"] == sql.served_name
    await node.loaded(sql)
    folder = Path(node.engines["a"].loaded[sql.served_name])
    assert folder.is_absolute()
    for file in sql.files:
        content = node.control_plane.files[sql.digest, file.name]
        assert (folder / file.name).read_bytes() == content
    page = render(node.metrics, node.fleet, now=time.monotonic())
    for step in ("loads", "fetches"):
        assert f'signalbox_adapter_{step}_total{{outcome="done"}} 1' in page
    assert f'adapter="{sql.served_name}"' in page


async def test_an_engine_that_refuses_an_adapter_gets_none_of_it_until_it_takes_it(
    node: Node,
) -> None:
    """R37: loaded on two of three with the third one's words; healed without anybody's help."""
    for name in ("a", "b", "c"):
        await node.engine(name)
    bad = node.engines["c"]
    bad.refuses[""] = (500, "out of memory")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql, "a", "b")
    await until(lambda: node.states(sql).get("c") == "failed")
    [told] = report_of(node.fleet.replicas["c"], time.monotonic()).adapter_states
    assert (told.message, told.attempts > 0) == ("out of memory", True)
    answers = await asyncio.gather(*(node.ask() for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    assert bad.asked == []
    assert node.engines["a"].asked
    assert node.engines["b"].asked
    lists = [await node.listed() for _ in range(10)]
    assert lists == [["m", "sql"]] * 10
    bad.refuses.clear()
    await node.loaded(sql)


async def test_a_restarted_and_a_new_replica_load_before_they_serve(node: Node) -> None:
    """R38: no client sees a 404 while requests go on."""
    for name in ("a", "b"):
        await node.engine(name)
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql)
    statuses: list[int] = []
    done = asyncio.Event()

    async def keep_asking() -> None:
        while not done.is_set():
            statuses.append((await node.ask()).status_code)

    asking = asyncio.ensure_future(keep_asking())
    restarted = node.engines["a"]
    restarted.restart()
    new = await node.engine("d")
    node.wants(sql)
    await until(lambda: restarted.made_for(sql.served_name) == [LOAD, LOAD])
    await until(lambda: new.made_for(sql.served_name) == [LOAD])
    await node.loaded(sql)
    before = len(restarted.asked), len(new.asked)
    await until(lambda: len(restarted.asked) > before[0] and len(new.asked) > before[1])
    done.set()
    await asking
    assert set(statuses) == {200}
    assert new.unknown == []
    assert all(r.breaker.state == "closed" for r in node.fleet.replicas.values())


@pytest.mark.parametrize("way", [{"model": "sql"}, {"lora": "sql", "model": "m"}])
async def test_an_adapter_that_cannot_be_loaded_is_not_answered_by_the_base(
    node: Node, way: dict[str, str]
) -> None:
    """R39."""
    engine = await node.engine("a")
    engine.refuses[""] = (400, "rank too large")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await until(lambda: node.states(sql) == {"a": "failed"})
    answer = await node.ask(**way)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "adapter_failed")
    assert "retry-after" in answer.headers
    node.wants()
    assert (await node.ask(**way)).status_code == 404
    assert engine.asked == []


async def test_a_deleted_adapter_is_unloaded_when_its_stream_has_ended(node: Node) -> None:
    """R41: new requests get 404 at once, the stream goes on, the unload may be repeated."""
    engine = await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql)
    engine.gate = asyncio.Event()
    stream = asyncio.ensure_future(node.ask(stream=True))
    await until(lambda: engine.running == [sql.served_name])
    node.wants()
    assert (await node.ask()).status_code == 404
    await until(lambda: node.states(sql) == {"a": "unloading"})
    assert UNLOAD not in engine.made_for(sql.served_name)
    engine.gate.set()
    assert (await stream).text.endswith("data: [DONE]\n\n")
    await until(lambda: node.states(sql) == {})
    assert engine.made_for(sql.served_name) == [LOAD, UNLOAD]
    assert engine.loaded == {}


async def test_an_unload_that_was_done_already_is_done(node: Node) -> None:
    """R41: the engine answers 404 to the second call."""
    engine = await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql)
    held = node.fleet.replicas["a"].adapters
    engine.loaded.clear()
    node.wants()
    held.note_listed((sql.served_name,), time.monotonic())
    await until(lambda: not held.listed and not held.states)
    assert node.metrics.adapter_steps["unload", "failed"] == 0


async def test_a_stream_that_another_agent_sent_is_waited_for_too(node: Node) -> None:
    """R41: seen in the engine's own metrics."""
    engine = await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql)
    engine.running.append(sql.served_name)
    await until(lambda: node.fleet.replicas["a"].figures.running == 1)
    node.wants()
    await until(lambda: node.states(sql) == {"a": "unloading"})
    assert UNLOAD not in engine.made_for(sql.served_name)
    engine.running.clear()
    await until(lambda: node.states(sql) == {})


async def test_one_bad_adapter_does_not_block_the_others(node: Node) -> None:
    """R42: not retried in a tight loop, no breaker moves, base and others are served."""
    engine = await node.engine("a")
    bad, good = publish(node.control_plane, "bad", "good")
    engine.refuses[bad.served_name] = (400, "Loading lora bad failed: broken weights")
    node.wants(bad, good)
    await node.loaded(good)
    await until(lambda: node.states(bad) == {"a": "failed"})
    for model in ("good", "m"):
        assert (await node.ask(model)).status_code == 200
    [told] = [
        s for s in report_of(node.fleet.replicas["a"], time.monotonic()).adapter_states
        if s.served_name == bad.served_name
    ]  # fmt: skip
    assert told.message == "Loading lora bad failed: broken weights"
    assert engine.made_for(bad.served_name) == [LOAD]
    assert node.keeper._attempts[node.fleet.replicas["a"], bad.served_name].again_at > (
        time.monotonic() + 100
    )
    replica = node.fleet.replicas["a"]
    assert (replica.breaker.state, replica.errors_total) == ("closed", 0)
    engine.refuses.clear()
    engine.restart()  # another process may take it: tried at once
    await node.loaded(bad)


async def test_files_that_cannot_be_fetched_are_said_and_fetched_later(node: Node) -> None:
    await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    files, node.control_plane.files = node.control_plane.files, {}
    node.wants(sql)
    await until(lambda: node.states(sql) == {"a": "failed"})
    [told] = report_of(node.fleet.replicas["a"], time.monotonic()).adapter_states
    assert "could not be fetched: the control plane answered 404" in told.message
    node.control_plane.files = files
    await node.loaded(sql)


async def test_without_a_control_plane_a_restarted_engine_gets_its_adapters_back(
    node: Node,
) -> None:
    """R36, R38: table and files are on the disk."""
    engine = await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql)
    await node.loaded(sql)
    await node.control_plane.stop()
    engine.restart()
    await until(lambda: engine.made_for(sql.served_name) == [LOAD, LOAD])
    await node.loaded(sql)
    assert (await node.ask()).status_code == 200


async def test_replicas_of_other_nodes_and_adapters_of_somebody_else_are_left_alone(
    node: Node,
) -> None:
    engine = await node.engine("a")
    engine.loaded["by-hand"] = "/x"
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql, node="node-b")
    replica = node.fleet.replicas["a"]
    await until(lambda: replica.adapters.listed == ("by-hand",))
    assert node.states(sql) == {}
    engine.loaded[sql.served_name] = "/y"  # as the agent of its node does
    await until(lambda: replica.adapters.resident)
    assert (await node.ask()).status_code == 200
    node.wants(sql)
    await node.loaded(sql)
    node.wants(sql, node="node-b")  # moved away: no longer this agent's to tell of
    await until(lambda: node.states(sql) == {})
    assert replica.adapters.resident
    node.wants()
    await until(lambda: replica.adapters.listed == ("by-hand",))
    assert engine.made == [(UNLOAD, sql.served_name)]


async def test_an_adapter_without_files_or_calls_is_said_to_be_none(node: Node) -> None:
    await node.engine("a")
    [sql] = publish(node.control_plane, "sql")
    node.wants(sql, engine="llamacpp")
    await until(lambda: node.states(sql) == {"a": "failed"})
    [told] = report_of(node.fleet.replicas["a"], time.monotonic()).adapter_states
    assert told.message == "This kind of engine takes no adapters while it runs."
    node.wants(sql)
    table = node.fleet.wire_table
    assert table is not None
    node.fleet.apply(replace(table, adapters=()), now=time.monotonic(), wall=time.time())
    node.engines["a"].restart()
    await until(
        lambda: (
            [s.message for s in node.fleet.replicas["a"].adapters.report(time.monotonic())]
            == ["The table does not tell its files."]
        )
    )
