"""Adapters with agents and simulated engines as processes: killed, restarted, on their own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from routing_agent import wire
from tests.agent.adapter_files import publish
from tests.agent.control.tables import a_table
from tests.agent.processes import ROOT, AgentProcess
from tests.agent.test_app import managed
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.lora_engine import LoraEngine


class SimulatedEngine:
    """`simulate-engine` on a port that it keeps over restarts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, client: httpx.AsyncClient) -> SimulatedEngine:
        words = ("simulate-engine", "--port", str(self.port), "--model", "m", "--speed", "50")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "routing_agent", *words, cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(20):
            while not await self._is_up(client):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        return self

    async def _is_up(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self.url}/health")).status_code == 200
        except httpx.TransportError:
            return False

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as made:
        yield made


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def started(stack: AsyncExitStack, log: Any, *words: str) -> AgentProcess:
    agent = await AgentProcess(log, *words).start()
    stack.push_async_callback(agent.kill)
    return await agent.listens()


async def asked(client: httpx.AsyncClient, agent: AgentProcess, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    return await client.post(f"{agent.traffic}/v1/chat/completions", json=body)


async def answered(client: httpx.AsyncClient, agent: AgentProcess, model: str) -> dict[str, Any]:
    """Ask until there is an answer; until then nothing but 503 may come."""
    async with asyncio.timeout(20):
        while (answer := await asked(client, agent, model)).status_code != 200:
            assert answer.status_code in (503, 502), answer.text
            await asyncio.sleep(0.05)
    return answer.json()


def a_table_of(engine: SimulatedEngine, adapter: wire.Adapter, epoch: int) -> wire.RoutingTable:
    endpoint = wire.Endpoint(
        replica="r0", url=engine.url, node="node-a", adapters=(adapter.served_name,)
    )
    plain = a_table(epoch)
    [pool] = plain.pools
    settings = wire.PoolSettings(probe_interval_s=0.2, scrape_interval_s=0.2, slow_start_s=0)
    pools = (replace(pool, endpoints=(endpoint,), settings=settings),)
    shared = replace(adapter, shared_with=("local",))
    table = replace(plain, pools=pools, adapters=(shared,))
    return replace(table, digest=wire.table_digest(table))


async def test_an_adapter_outlives_its_engine_its_control_plane_and_its_agent(
    tmp_path, stack, client, unused_tcp_port
) -> None:
    """R36, R38: fetched by one life of the agent, loaded again by the next, all from its disk."""
    plane = await FakeControlPlane().start()
    stack.push_async_callback(plane.stop)
    engine = await SimulatedEngine(unused_tcp_port).start(client)
    stack.push_async_callback(engine.kill)
    [sql] = publish(plane, "sql")
    plane.table = a_table_of(engine, sql, 5)
    words = managed(plane, tmp_path)
    agent = await started(stack, tmp_path / "first.log", *words)
    first = await answered(client, agent, "sql")
    base = await answered(client, agent, "m")
    assert first["model"] == sql.served_name
    assert first["choices"][0]["message"] != base["choices"][0]["message"]
    await until(
        lambda: (
            [
                (state.served_name, state.state)
                for replica in plane.reports[-1].replicas
                for state in replica.adapter_states
            ]
            == [(sql.served_name, "loaded")]
        )
    )
    assert plane.reports[-1].replicas[0].adapters == (sql.served_name,)
    await until(lambda: {u.adapter for u in plane.usage.values()} == {"", sql.served_name})
    state = (await plane.ask(agent.admin, "/agent/v1/state")).json()
    assert state["adapters"]["used_bytes"] == sum(file.size_bytes for file in sql.files)
    assert state["replicas"][0]["adapter_states"][0]["state"] == "loaded"
    await plane.stop()
    await engine.kill()
    await engine.start(client)
    assert (await answered(client, agent, "sql"))["choices"] == first["choices"]
    agent.tell(signal.SIGTERM)
    assert await agent.exit_status() == 0
    await engine.kill()
    await engine.start(client)
    again = await started(stack, tmp_path / "second.log", *words)
    assert (await answered(client, again, "sql"))["choices"] == first["choices"]


async def test_alone_it_serves_the_adapters_that_its_engines_list(tmp_path, stack, client) -> None:
    """By their listed names, only from the engines that list them."""
    holder, other = LoraEngine(), LoraEngine()
    for engine in (holder, other):
        await engine.start()
        stack.push_async_callback(engine.stop)
    holder.loaded["lora-a"] = "/somewhere"
    agent = await started(
        stack, tmp_path / "serve.log", "serve", "--worker-urls", holder.url, other.url
    )
    await answered(client, agent, "m")
    for _ in range(4):
        assert (await answered(client, agent, "lora-a"))["choices"][0]["message"]["content"] == (
            "lora-a"
        )
    assert other.asked.count("lora-a") == 0
    listed = (await client.get(f"{agent.traffic}/v1/models")).json()["data"]
    assert [(m["id"], m.get("parent")) for m in listed] == [("m", None), ("lora-a", "m")]
    assert (await asked(client, agent, "lora-b")).status_code == 404
    assert holder.made == []
