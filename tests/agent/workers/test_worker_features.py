"""What an agent can do works in each of its processes, and none of them outlives its supervisor."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from routing_agent import wire
from tests.agent.certificates import Authority
from tests.agent.control.tables import a_table
from tests.agent.core.test_adapters import adapter
from tests.agent.processes import AgentProcess
from tests.agent.test_app import managed
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.kv_publisher import KvPublisher, stored
from tests.fakes.lora_engine import LoraEngine

pytestmark = [pytest.mark.timeout(300)]
SQL = adapter(tenant="local")  # of the tenant that needs no key
MESSAGES = [{"role": "user", "content": "hello"}]


def a_table_of(engine: LoraEngine, shadow: LoraEngine, events: KvPublisher) -> wire.RoutingTable:
    """A pool with an adapter, a shadow, and an engine that tells of its cache."""
    quick = wire.PoolSettings(
        probe_interval_s=0.2, scrape_interval_s=0.2, slow_start_s=0,
        ttft_limit_s=300, stall_limit_s=300,
    )  # fmt: skip
    settings = replace(
        quick,
        kv_events=f"tcp://127.0.0.1:{events.port}",
        kv_replay=f"tcp://127.0.0.1:{events.replay_port}",
    )
    plain = a_table(1, adapters=(SQL,))
    [pool] = plain.pools
    ends = [
        wire.Endpoint(replica=name, url=one.url, adapters=(SQL.served_name,) * has_it)
        for name, one, has_it in (("r0", engine, True), ("s0", shadow, False))
    ]
    copied = wire.Shadow(pool="shadow", ratio=1.0, at_once=8, keep="answers")
    pools = (
        replace(pool, endpoints=(ends[0],), settings=settings, shadow=copied),
        replace(pool, name="shadow", version="v2", endpoints=(ends[1],), settings=quick),
    )
    table = replace(plain, pools=pools, digest="")
    return replace(table, digest=wire.table_digest(table))


class Scene:
    """An agent of two workers with TLS, all that it talks to, and a client."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        cert, key = authority.issue("127.0.0.1")
        self.words = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--workers", "2")
        self.folder = folder
        self.plane = FakeControlPlane()
        self.engine, self.shadow, self.events = LoraEngine(), LoraEngine(), KvPublisher()
        trust = ssl.create_default_context(cafile=authority.ca_file)
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(verify=trust, trust_env=False, timeout=120, limits=limits)

    async def start(self) -> None:
        await asyncio.gather(self.engine.start(), self.shadow.start(), self.events.start())
        self.engine.loaded[SQL.served_name] = "/sql"
        self.plane.table = a_table_of(self.engine, self.shadow, self.events)
        await self.plane.start()
        words = managed(self.plane, self.folder, *self.words)
        self.agent = await AgentProcess(self.folder / "agent.log", *words).start()
        await until(lambda: self.agent.events("agent_listens") or self.agent.exited, within_s=120)
        assert self.agent.traffic.startswith("https://")

    async def stop(self) -> None:
        await self.agent.kill()
        if self.engine.gate is not None:
            self.engine.gate.set()
        await self.client.aclose()
        await asyncio.gather(
            self.engine.stop(), self.shadow.stop(), self.events.stop(), self.plane.stop()
        )
        self.events.end()

    async def ask(self, model: str, **more: object) -> httpx.Response:
        body = {"model": model, "messages": MESSAGES, **more}
        return await self.client.post(f"{self.agent.traffic}/v1/chat/completions", json=body)

    async def workers(self) -> list[dict[str, int]]:
        state = await self.plane.ask(self.agent.admin, "/agent/v1/state")
        found: list[dict[str, int]] = state.json()["workers"]
        return found


@pytest.fixture
async def scene(tmp_path: Path):
    made = Scene(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def test_tls_adapters_shadows_and_cache_events_and_no_worker_without_its_supervisor(scene):
    plane, engine = scene.plane, scene.engine
    async with asyncio.timeout(120):
        while (await scene.ask("sql")).status_code != 200:  # noqa: ASYNC110 - until probes see it
            await asyncio.sleep(0.05)
    # Streams until both processes have some: which one accepts is chance.
    engine.gate = asyncio.Event()
    streams: list[asyncio.Task[httpx.Response]] = []
    async with asyncio.timeout(120):
        while not all(one["running_requests"] for one in await scene.workers()):
            streams += [asyncio.create_task(scene.ask("sql", stream=True)) for _ in range(2)]
            await asyncio.sleep(0.1)  # what workers say of themselves is so old
    engine.gate.set()
    answers = await asyncio.gather(*streams)
    assert {(one.status_code, one.text.count("[DONE]")) for one in answers} == {(200, 1)}
    assert set(engine.asked) == {SQL.served_name}
    assert not engine.unknown
    await until(lambda: len(plane.usage) > len(streams), within_s=120)
    assert {one.adapter for one in plane.usage.values()} == {SQL.served_name}
    # Shadows: each copy is compared by the process that sent it, and told by the supervisor.
    async with asyncio.timeout(120):
        while len(plane.pairs) < 4:  # none is copied before the shadow's engine was seen
            assert (await scene.ask("m")).status_code == 200
    assert {(one.pool, one.shadow_pool) for one in plane.pairs.values()} == {("chat", "shadow")}
    assert set(scene.shadow.asked) == {"m"}
    await until(lambda: len(plane.usage) >= len(engine.asked), within_s=120)
    assert len(plane.usage) == len(engine.asked)  # copies are not billed

    # Events: both processes follow them, and both ask for what they have missed.
    def told() -> str:
        replicas = {one.replica: one for one in plane.reports[-1].replicas}
        prefix = replicas["r0"].prefix
        return "" if prefix is None else prefix.kv_events

    async with asyncio.timeout(120):
        while len(scene.events.asked) < 2 or not told().startswith("last heard"):
            await scene.events.publish(stored([scene.events.number + 1]))
            await asyncio.sleep(0.05)
    # The supervisor is killed: what runs ends well, then all are gone, and so is the port.
    pids = [one["pid"] for one in await scene.workers()]
    engine.gate, already = asyncio.Event(), len(engine.asked)
    streams = [asyncio.create_task(scene.ask("sql", stream=True)) for _ in range(8)]
    await until(lambda: len(engine.asked) == already + 8, within_s=120)
    scene.agent.tell(signal.SIGKILL)
    await until(lambda: len(scene.agent.events("supervisor_gone")) == 2, within_s=120)
    engine.gate.set()
    answers = await asyncio.gather(*streams)
    assert {(one.status_code, one.text.count("[DONE]")) for one in answers} == {(200, 1)}
    await until(lambda: not any(map(runs, pids)), within_s=120)
    host, port = scene.agent.events("agent_listens")[0]["traffic"].split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5).close()


def runs(pid: int) -> bool:
    """Say whether a process that is not our child runs; one that nobody waits for has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
