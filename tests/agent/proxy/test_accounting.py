"""What a request holds is given back exactly, and limits hold under bursts."""

from __future__ import annotations

import asyncio

import pytest

from routing_agent import wire
from routing_agent.metrics_page import render
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.fakes.engine import (
    Call,
    completion,
    event,
    failing,
    hanging,
    in_turn,
    obliging,
)

STREAM = chat(stream=True)


async def endless(call: Call) -> None:
    await call.head(200, "text/event-stream")
    while not call.peer_closed.is_set():
        await call.chunk(event("x"))
        await call.pause(0.01)


async def breaking(call: Call) -> None:
    await call.head(200, "text/event-stream")
    await call.chunk(event("x"))
    call.reset()


async def test_clients_that_leave_free_the_engine_at_once(rig: Rig) -> None:
    """R08: half by FIN, half by RST, after three events."""
    await rig.start(endless)
    for i in range(20):
        client = await RawClient.open(rig.port)
        client.post(STREAM)
        await client.head()
        for _ in range(3):
            assert await client.chunk()
        if i % 2:
            client.close()
        else:
            client.reset()
    await until(lambda: all(c.peer_closed.is_set() for c in rig.engines[0].calls))
    await until(lambda: len(rig.records) == 20)
    assert {r.status for r in rig.records} == {499}
    rig.assert_nothing_is_left()
    assert all(r.output_tokens > 0 and r.estimated for r in rig.records)


async def test_clients_that_leave_before_the_answer_free_the_engine(rig: Rig) -> None:
    """R08: also when nothing has come yet, plain or streamed."""
    await rig.start(hanging)
    for stream in (True, False):
        client = await RawClient.open(rig.port)
        client.post(chat(stream=stream))
        await rig.engines[0].called(1 + (not stream))
        client.close()
    await until(lambda: all(c.peer_closed.is_set() for c in rig.engines[0].calls))
    await until(lambda: [r.status for r in rig.records] == [499, 499])


async def test_mixed_failures_leave_no_charge_behind(rig: Rig) -> None:
    """R08: resets mid-stream and 503s, then the next requests are balanced."""
    await rig.start(in_turn(*[breaking, failing(503)] * 10), obliging())
    rig.configure(breaker_failures=1000, policy="least_tokens")
    await asyncio.gather(*(rig.ask(STREAM) for _ in range(50)))
    rig.assert_nothing_is_left()
    rig.engines[0].script = obliging()
    before = rig.calls
    for _ in range(10):
        assert (await rig.ask(STREAM)).status == 200
    gained = [after - n for after, n in zip(rig.calls, before, strict=True)]
    assert gained == [5, 5]


async def test_load_counts_from_the_moment_of_dispatch(rig: Rig) -> None:
    """R09: 20 requests in a burst at engines that hold their headers back."""
    release = asyncio.Event()

    async def held(call: Call) -> None:
        await release.wait()
        await obliging()(call)

    await rig.start(held, held)
    asked = [
        asyncio.create_task(rig.ask(chat(messages=[{"role": "user", "content": f"{i:04}"}])))
        for i in range(20)
    ]
    await until(lambda: sum(rig.calls) == 20)
    assert rig.calls == [10, 10]
    release.set()
    assert {(await reply).status for reply in asked} == {200}


async def test_ties_do_not_always_go_to_the_same_replica(rig: Rig) -> None:
    """R09: idle replicas take turns where nothing else tells them apart."""
    await rig.start(obliging(), obliging())
    rig.configure(policy="least_tokens")
    for _ in range(10):
        await rig.ask(chat())
    assert rig.calls == [5, 5]


def two_tenants(**limits: int) -> dict[str, object]:
    return {
        "open_access": False,
        "tenants": (
            wire.Tenant(name="t1", limits=wire.TenantLimits(**limits)),
            wire.Tenant(name="t2"),
            wire.Tenant(name="t3", suspended=True),
            wire.Tenant(name="t4", models=("other",)),
        ),
        "api_keys": (
            *(
                wire.ApiKey(id=f"k{i}", sha256=key_hash(f"sk-{i}"), tenant=f"t{i}")
                for i in (1, 2, 3, 4)
            ),
            wire.ApiKey(id="old", sha256=key_hash("sk-old"), tenant="t1", expires_at=1.0),
        ),
    }


async def test_a_burst_cannot_jump_over_the_concurrency_limit(rig: Rig) -> None:
    """R11: five of fifty run, the others get 429; afterwards all five places are back."""
    release = asyncio.Event()

    async def held(call: Call) -> None:
        await release.wait()
        await call.answer(200, completion())

    await rig.start(held)
    rig.configure(table=two_tenants(concurrency=5))
    asked = [asyncio.create_task(rig.ask(chat(), authorization="Bearer sk-1")) for _ in range(50)]
    await until(lambda: len(rig.records) == 45)
    other = asyncio.create_task(rig.ask(chat(), authorization="Bearer sk-2"))
    await rig.engines[0].called(6)
    release.set()
    replies = [await reply for reply in asked]
    assert (await other).status == 200
    assert sorted(r.status for r in replies) == [200] * 5 + [429] * 45
    refused = next(r for r in replies if r.status == 429)
    assert refused.error["code"] == "rate_limit_exceeded"
    assert refused.error["limit"] == "concurrency"
    assert int(refused.headers["retry-after"]) >= 1
    again = await asyncio.gather(*(rig.ask(chat(), authorization="Bearer sk-1") for _ in range(5)))
    assert {r.status for r in again} == {200}


async def test_a_token_budget_admits_what_fits(rig: Rig) -> None:
    """R11: tokens a minute for three such requests."""
    await rig.start(hanging)
    body = chat(max_tokens=99)
    rig.configure(table=two_tenants(tokens_per_minute=310))
    clients = []
    for _ in range(50):
        client = await RawClient.open(rig.port)
        client.post(body, authorization="Bearer sk-1")
        clients.append(client)
    await until(lambda: len(rig.records) == 47)
    assert {r.status for r in rig.records} == {429}
    for client in clients:
        client.close()
    await until(lambda: len(rig.records) == 50)


@pytest.mark.parametrize(
    ("header", "status", "code"),
    [
        ({}, 401, "missing_api_key"),
        ({"authorization": "Bearer nope"}, 401, "invalid_api_key"),
        ({"authorization": "Basic sk-1"}, 401, "invalid_api_key"),
        ({"authorization": "Bearer sk-old"}, 401, "expired_api_key"),
        ({"authorization": "Bearer sk-3"}, 403, "tenant_suspended"),
        ({"authorization": "Bearer sk-4"}, 403, "model_not_allowed"),
        ({"authorization": "Bearer sk-1"}, 200, ""),
        ({"authorization": "bearer sk-1"}, 200, ""),
        ({"x_api_key": "sk-1"}, 200, ""),
    ],
)
async def test_who_may_call(rig: Rig, header: dict[str, str], status: int, code: str) -> None:
    """401 without a good key, 403 for what a good key may not do."""
    await rig.start()
    rig.configure(table=two_tenants())
    reply = await rig.ask(chat(), **header)
    assert reply.status == status
    if code:
        assert reply.error["code"] == code
        assert rig.calls == [0]


async def test_a_kept_connection_is_asked_for_its_key_anew_by_each_table(rig: Rig) -> None:
    """A revoked key ends with the table that revokes it, and another key is another caller."""
    await rig.start()
    rig.configure(table=two_tenants())
    client = await RawClient.open(rig.port)

    async def status(key: str) -> int:
        client.post(chat(), authorization=f"Bearer {key}")
        return (await client.reply()).status

    assert [await status(key) for key in ("sk-1", "sk-1", "nope", "sk-1")] == [200, 200, 401, 200]
    rig.apply(api_keys=tuple(key for key in rig.table.api_keys if key.id != "k1"))
    assert [await status(key) for key in ("sk-1", "sk-2")] == [401, 200]


async def test_records_name_tenant_key_and_replica(rig: Rig) -> None:
    """One record a request, with who, where and how much."""
    await rig.start()
    rig.configure(table=two_tenants())
    await rig.ask(chat(), authorization="Bearer sk-2", x_request_id="mine-1")
    record = rig.records[0]
    assert (record.tenant, record.api_key, record.request_id) == ("t2", "k2", "mine-1")
    assert (record.model, record.pool, record.version, record.replica) == ("m", "p", "1", "r0")
    assert rig.replica().output_tokens_total == record.output_tokens == 7


async def test_three_hundred_streams_meet_no_hidden_ceiling(rig: Rig) -> None:
    """R18: all get their first event; another request, health and metrics answer meanwhile."""
    go = asyncio.Event()

    async def held(call: Call) -> None:
        if not call.json().get("stream"):
            await call.answer(200, completion())
            return
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await go.wait()
        await call.chunk(event(finish="stop"))
        await call.end()

    await rig.start(held, held)
    clients = [await RawClient.open(rig.port) for _ in range(300)]
    for client in clients:
        client.post(STREAM)
    for client in clients:
        await client.head()
        assert await client.chunk()
    assert (await rig.ask(chat())).status == 200
    assert "signalbox_inflight_requests" in render(rig.metrics, rig.fleet, now=rig.proxy.now)
    go.set()
    for client in clients:
        while await client.chunk():
            pass
        client.close()
