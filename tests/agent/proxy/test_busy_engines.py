"""An engine that says it is full, and nobody else has room: what each overload policy does."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from routing_agent import wire
from routing_agent.core.figures import EngineFigures
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import DONE, Call, failing, hanging, in_turn, obliging

FULL_IN_A_200 = (
    b'data: {"error": {"object": "error", "message": "The request queue is full.",'
    b' "type": "SERVICE_UNAVAILABLE", "code": 503}}\n\n'
)


async def full_event(call: Call) -> None:
    await call.stream(FULL_IN_A_200, DONE)


@pytest.mark.parametrize(
    "refusal", [failing(503), failing(429, None, "retry-after: 1"), full_event]
)
async def test_a_refused_request_waits_in_the_queue_and_is_served(
    rig: Rig, refusal: object
) -> None:
    """Queue: the client sees one good answer, after a pause the engine asked for."""
    await rig.start(in_turn(refusal, refusal, obliging()))  # type: ignore[arg-type]
    reply = await rig.ask(chat(stream=True))
    assert (reply.status, reply.text) == (200, "one two three")
    arrivals = [call.arrived_at for call in rig.engines[0].calls]
    assert [b - a > 0.9 for a, b in pairwise(arrivals)] == [True, True]
    assert rig.replica().breaker.state == "closed"
    assert rig.replica().errors_total == 0
    assert rig.records[0].queue_wait_s > 1.8


async def test_its_wait_ends_before_the_queues_deadline(rig: Rig) -> None:
    """An engine that stays full: its own answer, as soon as waiting on would be in vain."""
    await rig.start(failing(503))
    rig.configure(queue_deadline_s=1.5)
    reply = await rig.ask(chat())
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert rig.calls == [2]


async def test_a_pause_longer_than_the_deadline_is_told_at_once(rig: Rig) -> None:
    """Waiting would be in vain: the engine's own answer, with its Retry-After."""
    await rig.start(failing(429, None, "retry-after: 70"))
    reply = await rig.ask(chat())
    assert (reply.status, reply.headers["retry-after"]) == (429, "70")
    assert rig.calls == [1]


async def test_a_full_queue_passes_the_refusal_on(rig: Rig) -> None:
    """The queue stays bounded, whoever fills it."""
    await rig.start(failing(503))
    rig.configure(queue_limit_per_replica=2)
    waiting = [await RawClient.open(rig.port) for _ in range(2)]
    for client in waiting:
        client.post(chat())
    await until(lambda: len(rig.proxy.line("p")) == 2)
    assert (await rig.ask(chat())).status == 503
    for client in waiting:
        client.close()
    await until(lambda: rig.proxy.running_requests == 0)


async def test_it_keeps_its_place_by_when_it_came(rig: Rig) -> None:
    """Refused first, it goes before those that came later and waited meanwhile."""
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await go.wait()
        await obliging()(call)

    await rig.start(in_turn(failing(503, None, "retry-after: 4"), slow, obliging()))
    rig.configure(max_concurrency_per_replica=1)

    async def ask(name: str) -> None:
        before = rig.proxy.running_requests
        tasks.append(asyncio.create_task(rig.ask(chat(), x_request_id=name)))
        await until(lambda: rig.proxy.running_requests > before)

    tasks: list[asyncio.Task[object]] = []
    await ask("first")
    await until(lambda: len(rig.proxy.line("p")) == 1)
    await ask("second")  # finds room and takes it
    await ask("third")
    await until(lambda: len(rig.proxy.line("p")) == 2)
    (first,) = [e for e in rig.proxy._exchanges if e.request_id == b"first"]
    await until(lambda: first._pause is None)  # its turn may come now
    go.set()
    await asyncio.gather(*tasks)
    assert [r.request_id for r in rig.records] == ["second", "first", "third"]


async def test_one_refused_request_holds_up_nobody_else(rig: Rig) -> None:
    """The engine alone knows when it has room: others are sent at once."""
    await rig.start(in_turn(failing(503, None, "retry-after: 20"), obliging()))
    client = await RawClient.open(rig.port)
    client.post(chat())
    await until(lambda: len(rig.proxy.line("p")) == 1)
    assert (await rig.ask(chat())).status == 200
    client.close()


async def test_a_pool_that_rejects_passes_the_refusal_on(rig: Rig) -> None:
    """Reject: at once, in the engine's own words."""
    await rig.start(failing(503))
    rig.configure(overload="reject")
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["message"]) == (503, "status 503")
    assert rig.calls == [1]


async def test_a_pool_that_falls_back_sends_it_to_the_other_pool(rig: Rig) -> None:
    """Fallback: a full engine is a full pool."""
    await rig.start(failing(503), obliging())
    first = replace(
        rig.table.pools[0], overload="fallback", fallback_pool="q", endpoints=(rig.endpoint(0),)
    )
    spare = wire.Pool(
        name="q", model="m", version="2", overload="reject", endpoints=(rig.endpoint(1),)
    )
    rig.apply(pools=(first, spare))
    reply = await rig.ask(chat())
    assert (reply.status, reply.headers["x-signalbox-route"]) == (200, "fallback")
    assert rig.calls == [1, 1]


async def test_what_an_engine_computes_at_once_bounds_what_it_is_sent(rig: Rig) -> None:
    """Room: what it runs at once and a tenth to keep it busy, less what others have in it."""
    await rig.start(hanging)
    rig.replica().note_facts(kv_capacity_tokens=None, max_running=4)
    clients = [await RawClient.open(rig.port) for _ in range(8)]
    for number, client in enumerate(clients, 1):
        client.post(chat())
        await until(lambda n=number: rig.proxy.running_requests == n)
    assert len(rig.proxy.line("p")) == 3
    await until(lambda: rig.calls == [5])
    now = asyncio.get_running_loop().time()
    rig.replica().note_scrape(EngineFigures(running=4, waiting=6), now)  # five of them are others'
    clients[0].close()
    await until(lambda: rig.replica().inflight_requests == 4)
    held = rig.proxy.now
    await until(lambda: rig.proxy.now > held + 0.3)
    assert rig.calls == [5]
    rig.replica().note_scrape_error("gone")  # stale figures of others count no more
    await until(lambda: rig.calls == [6])
    for client in clients:
        client.close()
    await until(lambda: rig.proxy.running_requests == 0)
