"""An engine that hangs: what it had not begun to answer is served elsewhere, long before 600 s."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from routing_agent.engine.probe import Prober
from routing_agent.engine.scrape import Scraper
from routing_agent.http_client import HttpClient
from tests.agent.proxy.client import Reply, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import Call, Script, completion, event, hanging, obliging

PROBES = {
    "probe_interval_s": 0.1,
    "probe_timeout_s": 0.4,
    "probe_failures": 3,
    "scrape_interval_s": 0.05,
}


class Engine:
    """Health, metrics and answers of one engine, each as its test says."""

    def __init__(self, answer: Script | None = None, *, is_hung: bool = False) -> None:
        self.answer = answer or obliging()
        self.is_hung = is_hung
        self.has_metrics = True
        self.steps_on = False
        self.go = asyncio.Event()
        self._steps = count(100)
        self._at = next(self._steps)

    async def __call__(self, call: Call) -> None:
        if call.method == "POST":
            await (hanging if self.is_hung else self.answer)(call)
        elif call.target == "/metrics":
            await self._metrics(call)
        elif self.is_hung:
            await hanging(call)
        else:
            await call.answer(200, {"data": []})

    async def _metrics(self, call: Call) -> None:
        if not self.has_metrics or (self.is_hung and not self.steps_on):
            await hanging(call)
            return
        if self.steps_on:
            self._at = next(self._steps)
        lines = (
            "vllm:num_requests_running 1.0",
            "vllm:num_requests_waiting 0.0",
            f"vllm:iteration_tokens_total_count {self._at}",
            f"vllm:generation_tokens_total {self._at}",
        )
        await call.answer(200, "\n".join(lines).encode() + b"\n", "x: y")


@asynccontextmanager
async def watched(rig: Rig) -> AsyncIterator[None]:
    """Probe and scrape the engines."""
    client = HttpClient(attention=rig.proxy.attention)
    loops = asyncio.gather(
        Prober(rig.fleet, client, random.Random(1)).run(),
        Scraper(rig.fleet, client, random.Random(1)).run(),
    )
    try:
        yield
    finally:
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)
        await client.close()


async def scraped(rig: Rig, replicas: int) -> None:
    await until(lambda: all(rig.replica(i).scraped_at is not None for i in range(replicas)))


def posts(rig: Rig) -> list[int]:
    return [sum(call.method == "POST" for call in engine.calls) for engine in rig.engines]


def probes(rig: Rig) -> int:
    """How often the first engine was asked for its health."""
    return sum(call.target in ("/health", "/v1/models") for call in rig.engines[0].calls)


async def bound_to_first(rig: Rig, bodies: list[dict[str, object]]) -> list[asyncio.Task[Reply]]:
    """Ask while only the first engine may be chosen."""
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1, state="ejected"))
    tasks = [asyncio.create_task(rig.ask(body)) for body in bodies]
    await until(lambda: posts(rig)[0] == len(bodies))
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1))
    return tasks


async def test_what_a_hung_engine_has_not_begun_is_served_elsewhere(rig: Rig) -> None:
    """Plain without max_tokens, and streams: none waits for its own limit, each is sent twice."""
    first, second = Engine(), Engine()
    await rig.start(first, second)
    rig.configure(ttft_limit_s=60, **PROBES)
    async with watched(rig):
        await scraped(rig, 2)
        first.is_hung = True
        tasks = await bound_to_first(rig, [chat(), chat(stream=True), chat(), chat(stream=True)])
        replies = await asyncio.gather(*tasks)
    assert [r.status for r in replies] == [200] * 4
    assert {r.headers["x-signalbox-replica"] for r in replies} == {"r1"}
    assert {r.headers["x-signalbox-route"] for r in replies} == {"retry"}
    assert posts(rig) == [4, 4]
    assert {r.attempts for r in rig.records} == {2}


async def test_a_busy_engine_that_computes_keeps_its_requests(rig: Rig) -> None:
    """Its health page does not answer, but its counters move: busy is not hung."""
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await go.wait()
        await obliging()(call)

    first, second = Engine(slow), Engine()
    await rig.start(first, second)
    rig.configure(ttft_limit_s=60, **PROBES)
    async with watched(rig):
        await scraped(rig, 2)
        first.steps_on = True
        tasks = await bound_to_first(rig, [chat(), chat(stream=True)])
        first.is_hung = True  # its pages do not answer any more; who was let in is served
        asked = probes(rig)
        await until(lambda: probes(rig) > asked + 4)
        assert posts(rig) == [2, 0]
        go.set()
        replies = await asyncio.gather(*tasks)
    assert [r.headers["x-signalbox-replica"] for r in replies] == ["r0", "r0"]


async def test_a_stream_that_has_begun_is_left_to_its_stall_limit(rig: Rig) -> None:
    """What the client has is not sent again: it ends with an error event."""

    async def two_tokens(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("one") + event(" two"))
        await hanging(call)

    first, second = Engine(two_tokens), Engine()
    await rig.start(first, second)
    rig.configure(ttft_limit_s=60, stall_limit_s=2, **PROBES)
    async with watched(rig):
        await scraped(rig, 2)
        (task,) = await bound_to_first(rig, [chat(stream=True)])
        first.is_hung = True
        reply = await task
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_too_slow"
    assert posts(rig) == [1, 0]


async def test_an_engine_without_figures_gets_a_ttft_limit_of_patience(rig: Rig) -> None:
    """A server that does one thing at a time answers no probe while it computes."""
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await go.wait()
        await call.answer(200, completion())

    first, second = Engine(slow), Engine()
    first.has_metrics = second.has_metrics = False
    await rig.start(first, second)
    rig.configure(ttft_limit_s=60, **PROBES)
    async with watched(rig):
        await until(lambda: rig.replica(1).health == "healthy")
        (task,) = await bound_to_first(rig, [chat()])
        first.is_hung = True
        await until(lambda: rig.replica(0).is_hung(asyncio.get_running_loop().time()))
        ticks = rig.proxy.now
        await until(lambda: rig.proxy.now > ticks + 0.3)
        assert posts(rig) == [1, 0]
        go.set()
        assert (await task).headers["x-signalbox-replica"] == "r0"


async def test_alone_in_its_pool_a_hung_engine_costs_a_ttft_limit(rig: Rig) -> None:
    """Nobody else could serve it: it waits a TTFT limit for the engine to come back, not 600 s."""
    first = Engine()
    await rig.start(first)
    rig.configure(ttft_limit_s=1, **PROBES)
    async with watched(rig):
        await scraped(rig, 1)
        first.is_hung = True
        reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (504, "engine_too_slow")
    assert "hung" in reply.error["message"]


async def test_failing_over_is_paced_by_the_retry_budget(rig: Rig) -> None:
    """A full engine that hangs must not fall upon its neighbour at once, nor be refused."""
    first, second = Engine(), Engine()
    await rig.start(first, second)
    rig.configure(ttft_limit_s=60, retry_budget_ratio=0.0, **PROBES)
    async with watched(rig):
        await scraped(rig, 2)
        first.is_hung = True
        budget = rig.fleet.pools["p"].budget
        tasks = await bound_to_first(rig, [chat() for _ in range(8)])
        budget.balance = 2.0
        budget._at = asyncio.get_running_loop().time()
        replies = await asyncio.gather(*tasks)
    assert [r.status for r in replies] == [200] * 8
    assert posts(rig) == [8, 8]
