"""An agent of several processes: one port, one table, one identity, limits that hold over all."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from hashlib import sha256

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from routing_agent import wire
from routing_agent.control.peer_port import PeerPort
from routing_agent.control.peers import Peers
from routing_agent.core.fleet import Fleet
from tests.agent.control.tables import a_table
from tests.agent.processes import AgentProcess
from tests.agent.slow_engine import SlowEngine
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane

pytestmark = [pytest.mark.timeout(300)]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
KEY = {"authorization": "Bearer sk-1"}


def limited_table(
    epoch: int, engine: SlowEngine, settings: dict | None = None, **limits
) -> wire.RoutingTable:
    table = a_table(
        epoch,
        urls=(engine.url,),
        open_access=False,
        tenants=(wire.Tenant(name="acme", limits=wire.TenantLimits(**limits, leased=True)),),
        api_keys=(wire.ApiKey(id="k1", sha256=sha256(b"sk-1").hexdigest(), tenant="acme"),),
    )
    patient = wire.PoolSettings(ttft_limit_s=300, stall_limit_s=300, **(settings or {}))
    pools = tuple(msgspec.structs.replace(pool, settings=patient) for pool in table.pools)
    table = msgspec.structs.replace(table, pools=pools, digest="")
    return msgspec.structs.replace(table, digest=wire.table_digest(table))


class Scene:
    """A control plane, an engine that holds its streams, and agents of several workers."""

    def __init__(self, folder):
        self.folder = folder
        self.engine = SlowEngine()
        self.plane = FakeControlPlane()
        self.agents: list[AgentProcess] = []
        self.stack = AsyncExitStack()
        self.client = httpx.AsyncClient(
            trust_env=False, timeout=120, headers=KEY, limits=httpx.Limits(max_connections=None)
        )

    async def start(self, *, agents: int, workers: int, **limits) -> Scene:
        await self.engine.start()
        self.stack.push_async_callback(self.engine.stop)
        self.plane.limits["acme"] = wire.TenantLimits(**limits, leased=True)
        self.plane.table = limited_table(1, self.engine, **limits)
        self.plane.tokens = {f"once-{n}" for n in range(agents)}
        await self.plane.start()
        self.stack.push_async_callback(self.plane.stop)
        self.stack.push_async_callback(self.client.aclose)
        for n in range(agents):
            token = self.folder / f"token-{n}"
            token.write_text(f"once-{n}\n")
            agent = AgentProcess(
                self.folder / f"agent-{n}.log",
                *("agent", "--control-plane", self.plane.url, "--token-file", str(token)),
                *("--name", f"node-{n}", "--state-dir", str(self.folder / f"state-{n}")),
                *("--workers", str(workers)),
            )
            self.agents.append(await agent.start())
            self.stack.push_async_callback(agent.kill)
        for agent in self.agents:
            await until(lambda a=agent: a.events("agent_listens") or a.exited, within_s=120)
            await self.answers(agent)
        return self

    async def answers(self, agent: AgentProcess) -> None:
        async with asyncio.timeout(120):
            while (await self.client.get(f"{agent.admin}/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def metric(self, name: str, agent: int = 0) -> float:
        page = (await self.client.get(f"{self.agents[agent].admin}/metrics")).text
        samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
        return sum(s.value for s in samples if s.name == f"signalbox_{name}")

    async def ask(self, agent: int = 0) -> int:
        answer = await self.client.post(
            f"{self.agents[agent].traffic}/v1/chat/completions", json=CHAT
        )
        if answer.status_code == 200:
            assert answer.text.rstrip().endswith("[DONE]"), answer.text
        return answer.status_code

    async def ask_on(self) -> int:
        """Ask until it is let in: a lease call that is late on a busy machine refuses too much."""
        while (status := await self.ask()) == 429:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return status

    async def fills(self, limit: int, *counts: int) -> bool:
        """Send one burst, which never passes the limit; say whether it filled it."""
        await self.all_is_back()
        statuses = await self.burst(*counts)
        assert set(statuses) <= {200, 429}
        assert statuses[200] <= limit
        return statuses[200] == limit

    async def state(self, agent: int = 0) -> dict:
        admin = self.agents[agent].admin
        return (await self.plane.ask(admin, "/agent/v1/state")).json()

    async def runs(self) -> list[int]:
        """Give how many requests run in each worker, as they last said."""
        return [one["running_requests"] for one in (await self.state())["workers"]]

    async def burst(self, *counts: int, settled: int | None = None) -> Counter[int]:
        """Send so many at once through each agent; those that run are held until all are judged.

        `settled`: how many are let in, though not all of them reach the engine at once.
        """
        before, self.engine.go = self.calls(), asyncio.Event()
        asked = [
            asyncio.create_task(self.ask(agent))
            for agent, count in enumerate(counts)
            for _ in range(count)
        ]

        def judged() -> bool:
            let_in = self.calls() - before if settled is None else settled
            return sum(t.done() for t in asked) + let_in >= len(asked)

        await until(judged, within_s=120)
        self.engine.go.set()
        return Counter(await asyncio.gather(*asked))

    async def limit(self, epoch: int, settings: dict | None = None, **limits) -> None:
        """Change limits or settings; all agents have the table in place when this returns."""
        self.plane.limits["acme"] = wire.TenantLimits(**limits, leased=True)
        self.plane.table = limited_table(epoch, self.engine, settings, **limits)
        for agent in self.agents:
            answer = await self.plane.push(agent.admin, self.plane.table)
            assert answer.json()["outcome"] in ("applied", "already_there"), answer.text

    async def all_is_back(self) -> None:
        ledgers = self.plane.ledgers
        await until(
            lambda: not any(h.slots for one in ledgers.values() for h in one.holdings.values()),
            within_s=120,
        )

    def calls(self) -> int:
        return self.engine.calls["/v1/chat/completions"]

    def workers(self, agent: int = 0) -> list[int]:
        """Give the process ids of the workers that serve, by the agent's log."""
        served = {e["worker"]: e["pid"] for e in self.agents[agent].events("worker_serves")}
        return [served[number] for number in sorted(served)]


@pytest.fixture
async def scene(tmp_path):
    made = Scene(tmp_path)
    async with made.stack:
        yield made
        made.engine.go.set()


async def test_several_processes_are_one_agent(scene):
    await scene.start(agents=1, workers=2)
    scene.engine.go.set()
    assert Counter(await asyncio.gather(*(scene.ask() for _ in range(30)))) == {200: 30}
    await until(lambda: len(scene.plane.usage) == 30, within_s=120)
    assert await scene.metric("requests_total") == 30
    assert len({record.request_id for record in scene.plane.usage.values()}) == 30
    assert list(scene.plane.usage) == list(range(1, 31))  # one spool, one numbering
    await until(lambda: scene.plane.reports[-1].replicas[0].requests_total == 30, within_s=120)
    assert len(scene.plane.registered) == 1
    # A push is acknowledged when all processes have it: a key that it takes away is known nowhere.
    closed = a_table(2, urls=(scene.engine.url,), open_access=False)
    assert (await scene.plane.push(scene.agents[0].admin, closed)).json()["epoch"] == 2
    assert Counter(await asyncio.gather(*(scene.ask() for _ in range(20)))) == {401: 20}
    # Places at a replica and in its queue are counted over all processes.
    await scene.limit(3, {"max_concurrency_per_replica": 2, "queue_limit_per_replica": 3})
    assert await scene.burst(30, settled=5) == {200: 5, 429: 25}
    # What is asked of the agent is answered by one that chooses.
    state = await scene.state()
    await until(lambda: len(scene.agents[0].events("worker_serves")) == 2, within_s=120)
    assert [(one["worker"], one["serves"]) for one in state["workers"]] == [(0, True), (1, True)]
    assert state["fair_shares"]["chat"]["acme"] > 0
    await scene.limit(4)
    await tells_other_agents_and_hears_them(scene)
    # SIGTERM lets what runs end, in whichever process it runs.
    scene.engine.go.clear()
    running = [asyncio.create_task(scene.ask()) for _ in range(6)]
    await until(lambda: scene.engine.running == 6, within_s=120)
    scene.agents[0].tell(signal.SIGTERM)
    await until(lambda: scene.agents[0].events("draining"), within_s=120)
    scene.engine.go.set()
    assert await asyncio.gather(*running) == [200] * 6
    async with asyncio.timeout(120):
        assert await scene.agents[0].process.wait() == 0
    assert scene.agents[0].events("drained")[0]["cut_off"] == 0
    # The last report had them, or they are on disk for the next start: each once.
    left = (scene.folder / "state-0" / "usage.jsonl").read_bytes().splitlines()[1:]
    kept = [msgspec.json.decode(line, type=wire.UsageRecord).number for line in left]
    assert {*scene.plane.usage, *kept} == set(range(1, 68))


async def tells_other_agents_and_hears_them(scene: Scene) -> None:
    """Be another agent for a while: what it tells is known where requests are chosen for."""
    agent, table = scene.agents[0], limited_table(5, scene.engine)
    same = scene.engine.url.replace("127.0.0.1", "localhost")
    two = (*table.pools[0].endpoints, wire.Endpoint(replica="r1", url=same))
    pools = (msgspec.structs.replace(table.pools[0], endpoints=two),)
    table = msgspec.structs.replace(table, pools=pools, digest="")
    scene.plane.table = msgspec.structs.replace(table, digest=wire.table_digest(table))
    await scene.plane.push(agent.admin, scene.plane.table)
    other = Peers(Fleet(), "agent-9")
    other.fleet.apply(scene.plane.table, now=time.monotonic(), wall=time.time())
    port = PeerPort(other)
    number = await port.open("127.0.0.1", 0)
    telling = asyncio.create_task(port.run())
    peer = wire.PeerAddress(host="127.0.0.1", port=number, key=other.key)
    scene.plane.others = (wire.AgentPlaced(agent="agent-9", number=1, peer=peer),)
    await until(lambda: scene.plane.reports[-1].peer, within_s=120)
    ours = scene.plane.reports[-1]
    told = wire.AgentPlaced(agent=ours.agent, number=1, peer=ours.peer)
    other.learn((told,), time.monotonic())
    other.fleet.replicas["r1"].begin(2_000_000, time.monotonic())
    other.fleet.replicas["r1"].prefill.place(2_000_000, time.monotonic())
    asked = msgspec.json.encode(wire.ExplainRequest(model="m", tenant="acme", prompt="hello"))
    async with asyncio.timeout(120):
        ahead = 0.0
        while not ahead:
            answer = (await scene.plane.ask(agent.admin, "/agent/v1/explain", asked)).json()
            terms = {one["replica"]: one["terms"] for one in answer["candidates"]}
            ahead = terms["r1"].get("told_by_agents_tokens", 0.0)
            await asyncio.sleep(0.02)
    scene.engine.go.clear()
    asking = asyncio.create_task(scene.ask())
    await until(lambda: other.fleet.replicas["r0"].hearsay.told_requests == 1, within_s=120)
    scene.engine.go.set()
    assert await asking == 200
    assert (await scene.state())["peers"]["datagrams"]["heard"] > 0
    scene.plane.others = ()
    telling.cancel()
    port.close()


async def test_fifty_at_once_fill_a_limit_exactly_over_four_workers_of_one_agent_or_two(scene):
    await scene.start(agents=2, workers=4, concurrency=1)
    for epoch, limit in enumerate((1, 2, 3, 5), 2):
        await scene.limit(epoch, concurrency=limit)
        for counts in ((50, 0), (25, 25)):
            async with asyncio.timeout(120):
                while not await scene.fills(limit, *counts):
                    pass
    await scene.limit(6, requests_per_minute=7)
    assert (await scene.burst(25, 25))[200] <= 7


async def test_a_killed_worker_takes_nothing_with_it_but_its_own_streams(scene):
    await scene.start(agents=1, workers=3, concurrency=12)
    await until(lambda: len(scene.agents[0].events("worker_serves")) == 3, within_s=120)
    before, running = scene.workers(), []
    for already in range(12):  # one by one, so that none accepts them all
        running.append(asyncio.create_task(scene.ask_on()))
        await until(lambda a=already: scene.calls() > a, within_s=120)
    assert await scene.ask() == 429
    async with asyncio.timeout(120):  # what workers say of themselves is a tenth of a second old
        while sum(has := await scene.runs()) != 12:  # noqa: ASYNC110 - a page, no event
            await asyncio.sleep(0.05)
    killed = has.index(min(one for one in has if one))
    os.kill(before[killed], signal.SIGKILL)
    await until(lambda: len(scene.agents[0].events("worker_serves")) == 4, within_s=120)
    lost = sum(task.done() for task in running)  # as their clients see at once
    assert 0 < lost < 12
    # Its places are free again, and no more than those.
    again = [asyncio.create_task(scene.ask_on()) for _ in range(lost)]
    await until(lambda: scene.calls() == 12 + lost, within_s=120)
    assert await asyncio.gather(*(scene.ask() for _ in range(8))) == [429] * 8
    scene.engine.go.set()
    answers = await asyncio.gather(*running, return_exceptions=True)
    told = Counter(one if isinstance(one, int) else "cut" for one in answers)
    assert told == {200: 12 - lost, "cut": lost}
    assert await asyncio.gather(*again) == [200] * lost
    await until(lambda: len(scene.plane.usage) == 12, within_s=120)
    async with asyncio.timeout(120):  # usage is told before the charge is given back
        while await scene.metric("inflight_requests"):  # noqa: ASYNC110 - a page, no event
            await asyncio.sleep(0.05)
    after = scene.workers()
    assert [n for n in range(3) if before[n] != after[n]] == [killed]
    await scene.all_is_back()
