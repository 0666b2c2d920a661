"""Full pools, tables that change under traffic, and ends that are not abrupt."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from routing_agent import wire
from tests.agent.proxy.client import RawClient, Reply, chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.fakes.engine import DONE, Call, completion, event, hanging, obliging

STREAM = chat(stream=True)


class Gate:
    """A script that answers when it is told to, one call at a time."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)

    async def __call__(self, call: Call) -> None:
        await self.permits.acquire()
        await call.answer(200, completion())

    def open(self, times: int = 1000) -> None:
        for _ in range(times):
            self.permits.release()


async def asked(rig: Rig, count: int, **options: str) -> list[asyncio.Task[Reply]]:
    """Ask so often, each after the one before has arrived at the proxy."""
    tasks = []
    for _ in range(count):
        before = rig.proxy.running_requests + len(rig.records)
        tasks.append(asyncio.create_task(rig.ask(chat(), **options)))
        await until(lambda n=before: rig.proxy.running_requests + len(rig.records) > n)
    return tasks


async def test_a_full_pool_queues_up_to_its_limit(rig: Rig) -> None:
    """Queue: bounded, first come first served, its wait recorded; beyond it 429."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(max_concurrency_per_replica=2, queue_limit_per_replica=3)
    tasks = await asked(rig, 6)
    refused = await tasks[5]
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    assert "retry-after" in refused.headers
    assert rig.calls == [2]
    gate.open()
    assert {(await t).status for t in tasks[:5]} == {200}
    assert sum(r.queue_wait_s > 0 for r in rig.records) == 3
    assert rig.metrics.shed_total["queue"] == 1


async def test_the_queue_is_served_by_priority_then_age(rig: Rig) -> None:
    """A tenant's class counts; a request may only lower its own."""
    gate = Gate()
    await rig.start(gate)
    keys = tuple(
        wire.ApiKey(id=name, sha256=key_hash(name), tenant=name) for name in ("high", "low")
    )
    tenants = (wire.Tenant(name="high", priority=1), wire.Tenant(name="low", priority=8))
    rig.configure(
        table={"open_access": False, "api_keys": keys, "tenants": tenants},
        max_concurrency_per_replica=1,
    )
    tasks = await asked(rig, 1, authorization="Bearer low")
    for name, priority in (("low", "0"), ("high", "9"), ("high", "0"), ("low", "x")):
        tasks += await asked(
            rig, 1, authorization=f"Bearer {name}", x_signalbox_priority=priority,
            x_request_id=f"{name}-{priority}",
        )  # fmt: skip
    gate.open()
    await asyncio.gather(*tasks)
    order = [r.request_id for r in rig.records[1:]]
    assert order == ["high-0", "low-0", "low-x", "high-9"]


async def test_waiting_too_long_is_503(rig: Rig) -> None:
    """The queue's deadline, with Retry-After."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(max_concurrency_per_replica=1, queue_deadline_s=0.2)
    first, second = await asked(rig, 2)
    reply = await second
    assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
    gate.open()
    assert (await first).status == 200


async def test_a_client_that_leaves_the_queue_frees_its_place(rig: Rig) -> None:
    """R51: nobody waits for those who left."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(max_concurrency_per_replica=1, queue_limit_per_replica=1)
    (first,) = await asked(rig, 1)
    client = await RawClient.open(rig.port)
    client.post(chat())
    await until(lambda: rig.proxy.running_requests == 2)
    client.close()
    await until(lambda: rig.proxy.running_requests == 1)
    (third,) = await asked(rig, 1)
    gate.open()
    assert {(await first).status, (await third).status} == {200}


async def test_a_new_replica_serves_the_queue(rig: Rig) -> None:
    """Room that no finished request made is found within a tick."""
    gate = Gate()
    await rig.start(gate, obliging())
    rig.configure(max_concurrency_per_replica=1)
    rig.set_endpoints(rig.endpoint(0))
    tasks = await asked(rig, 4)
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1))
    await asyncio.gather(*tasks[1:])
    assert rig.calls[1] == 3
    gate.open()
    await tasks[0]


async def test_a_pool_may_reject_at_once(rig: Rig) -> None:
    """Reject: 429 that names the limit."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(overload="reject", max_concurrency_per_replica=1)
    first, second = await asked(rig, 2)
    reply = await second
    assert (reply.status, reply.error["code"]) == (429, "overloaded")
    gate.open()
    await first


async def test_a_turn_may_lead_to_another_queue(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Who waits while the table comes to say where to fall back goes there, and waits on there."""
    gate = Gate()
    await rig.start(gate, obliging())
    rig.configure(max_concurrency_per_replica=1)
    rig.set_endpoints(rig.endpoint(0))
    running, waiting = await asked(rig, 2)
    first = replace(rig.table.pools[0], overload="fallback", fallback_pool="q")
    spare = wire.Pool(
        name="q", model="m", version="2", overload="queue", start_wait_s=60.0, may_grow_to=1
    )
    rig.apply(pools=(first, spare))
    await until(lambda: [(one.pool, one.requests) for one in rig.proxy.waiting()] == [("q", 1)])
    rig.apply(pools=(first, replace(spare, endpoints=(rig.endpoint(1),))))
    assert (await waiting).headers["x-signalbox-route"] == "fallback"
    gate.open()
    assert (await running).status == 200
    assert not [r for r in caplog.records if r.exc_info]


@pytest.mark.parametrize("down", [True, False])
async def test_a_pool_may_fall_back(rig: Rig, down: bool) -> None:
    """Fallback: full, or without a usable replica."""
    gate = Gate()
    await rig.start(gate, obliging())
    rig.configure(max_concurrency_per_replica=1)
    first = replace(
        rig.table.pools[0], overload="fallback", fallback_pool="q", endpoints=(rig.endpoint(0),)
    )
    spare = wire.Pool(
        name="q", model="m", version="2", overload="reject", endpoints=(rig.endpoint(1),)
    )
    rig.apply(pools=(first, spare))
    tasks = [] if down else await asked(rig, 1)
    if down:
        rig.replica(0).note_health(False, "gone", 0.0)
    reply = await rig.ask(chat())
    assert reply.headers["x-signalbox-route"] == "fallback"
    assert (reply.headers["x-signalbox-pool"], reply.headers["x-signalbox-version"]) == ("q", "2")
    gate.open()
    await asyncio.gather(*tasks)


async def endless(call: Call) -> None:
    await call.head(200, "text/event-stream")
    while not call.peer_closed.is_set():
        await call.chunk(event("x"))
        await call.pause(0.02)


async def test_streams_survive_the_removal_of_their_replica(rig: Rig) -> None:
    """R53: out of the table means no new requests, not the end of running ones."""
    go = asyncio.Event()

    async def long(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await go.wait()
        await call.chunk(event("b", finish="stop"))
        await call.chunk(DONE)
        await call.end()

    await rig.start(long, obliging())
    rig.set_endpoints(rig.endpoint(0))
    running = asyncio.create_task(rig.ask(STREAM))
    await rig.engines[0].called()
    rig.set_endpoints(rig.endpoint(1))
    assert [r.id for r in rig.fleet.leaving] == ["r0"]
    for _ in range(5):
        assert (await rig.ask(chat())).headers["x-signalbox-replica"] == "r1"
    go.set()
    assert (await running).text == "ab"
    assert rig.calls[0] == 1
    await until(lambda: rig.engines[0].open_connections == 0)


@pytest.mark.parametrize("removed", [True, False])
async def test_the_drain_limit_ends_streams_with_an_error(rig: Rig, removed: bool) -> None:
    """R53, variant: draining or removed, the limit is explicit."""
    await rig.start(endless)
    rig.configure(drain_limit_s=0.3)
    running = asyncio.create_task(rig.ask(STREAM))
    await rig.engines[0].called()
    await until(lambda: rig.replica().last_token_at is not None)
    rig.set_endpoints(*(() if removed else (rig.endpoint(0, state="draining"),)))
    reply = await running
    assert reply.text.startswith("x")
    assert json.loads(reply.events[-1])["error"]["code"] == "shutting_down"
    await until(lambda: rig.engines[0].calls[0].peer_closed.is_set())


async def test_a_replica_with_a_new_address_starts_afresh(rig: Rig) -> None:
    """Same id, other address: no load, no breaker of the old one."""
    await rig.start(hanging, obliging())
    rig.set_endpoints(rig.endpoint(0))
    client = await RawClient.open(rig.port)
    client.post(chat())
    await rig.engines[0].called()
    rig.set_endpoints(wire.Endpoint(replica="r0", url=rig.engines[1].url))
    assert rig.replica().inflight_requests == 0
    assert (await rig.ask(chat())).status == 200
    assert rig.calls == [1, 1]
    client.close()


async def test_a_removed_pool_answers_those_who_waited(rig: Rig) -> None:
    """Nobody waits for a pool that is gone."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(max_concurrency_per_replica=1)
    first, second = await asked(rig, 2)
    rig.apply(pools=(), models=())
    reply = await second
    assert (reply.status, reply.error["code"]) == (503, "no_replica")
    gate.open()
    assert (await first).status == 200


async def test_drain_lets_requests_end_and_takes_no_new_connection(rig: Rig) -> None:
    """R53 for the agent itself."""
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await go.wait()
        await obliging()(call)

    await rig.start(slow)
    idle = await RawClient.open(rig.port)
    await until(lambda: rig.proxy.open_connections == 1)
    client = await RawClient.open(rig.port)
    client.post(chat())
    await rig.engines[0].called()
    drained = asyncio.create_task(rig.proxy.drain(10))
    assert await idle.ended()
    assert rig.proxy.is_draining
    with pytest.raises(OSError, match=r"."):
        await RawClient.open(rig.port)
    go.set()
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await drained == 0


async def test_drain_ends_at_its_limit_with_explicit_errors(rig: Rig) -> None:
    """R53: a stream gets an error event, a waiting request a 503."""
    await rig.start(endless)
    streaming = asyncio.create_task(rig.ask(STREAM))
    await until(lambda: rig.replica().last_token_at is not None)
    rig.engines[0].script = hanging
    waiting = asyncio.create_task(rig.ask(chat()))
    await rig.engines[0].called(2)
    assert await rig.proxy.drain(0.1) == 2
    reply = await streaming
    assert json.loads(reply.events[-1])["error"]["code"] == "shutting_down"
    assert (await waiting).status == 503


@pytest.mark.interpreted
async def test_a_fault_of_our_own_is_a_500_and_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in the router costs one request, not its counters."""
    await rig.start()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("routing_agent.proxy.exchange.choose", broken)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    monkeypatch.undo()
    assert (await rig.ask(chat())).status == 200


async def test_sessions_split_over_versions_exactly(rig: Rig) -> None:
    """R33: weights 0 and 100 are exact, and a session stays with its version."""
    await rig.start(obliging(), obliging())
    stable = wire.Pool(
        name="stable", model="m", version="1", overload="queue", endpoints=(rig.endpoint(0),)
    )
    canary = replace(stable, name="canary", version="2", endpoints=(rig.endpoint(1),))

    def split(a: float, b: float) -> None:
        shares = (
            wire.WeightedPool(pool="stable", weight=a),
            wire.WeightedPool(pool="canary", weight=b),
        )
        rig.apply(models=(wire.ModelRoute(model="m", split=shares),), pools=(stable, canary))

    for weights, expected in (((100, 0), "1"), ((0, 100), "2")):
        split(*weights)
        for i in range(50):
            reply = await rig.ask(chat(session_id=f"s{i}"))
            assert reply.headers["x-signalbox-version"] == expected
    split(50, 50)
    versions = {
        i: {(await rig.ask(chat(session_id=i))).headers["x-signalbox-version"] for _ in range(3)}
        for i in range(20)
    }
    assert all(len(seen) == 1 for seen in versions.values())
    assert len({v for seen in versions.values() for v in seen}) == 2


async def test_who_is_refused_is_told_how_long_the_queue_really_takes(rig: Rig) -> None:
    """Honest Retry-After: places ahead, by the pace at which they were served."""
    gate = Gate()
    await rig.start(gate)
    rig.configure(max_concurrency_per_replica=1, queue_limit_per_replica=4)
    tasks = await asked(rig, 4)
    gate.open(3)
    await asyncio.gather(*tasks[:3])
    line = rig.proxy.line("p")
    line.pace._served.clear()
    now = asyncio.get_running_loop().time()
    for i in range(10):
        line.pace.served(now - 30 + i * 3)
    tasks += await asked(rig, 5)
    refused = await tasks[-1]
    assert refused.status == 429
    assert 10 <= int(refused.headers["retry-after"]) <= 20
    gate.open()
    await asyncio.gather(*tasks)


async def test_the_queue_shrinks_with_the_replicas_that_can_serve(rig: Rig) -> None:
    """The limit is per healthy replica: a queue nobody drains must not grow."""
    gate = Gate()
    await rig.start(gate, gate)
    rig.configure(max_concurrency_per_replica=1, queue_limit_per_replica=1)
    rig.replica(1).note_health(False, "off", 0.0)
    tasks = await asked(rig, 3)
    assert (await tasks[2]).status == 429
    rig.replica(1).note_health(True, "on", 0.0)
    tasks += await asked(rig, 3)
    assert (await tasks[5]).status == 429
    gate.open()
    await asyncio.gather(*tasks)
