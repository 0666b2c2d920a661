"""Requests for LoRA adapters through the relay: only where one is loaded, never by the base."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from routing_agent import wire
from tests.agent.core.test_adapters import HEX, adapter
from tests.agent.proxy.client import RawClient, Reply, chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.fakes.engine import DONE, Call, Script, completion, event, failing, obliging

SQL = adapter()
TENANTS = ("acme", "bravo")


async def started(
    rig: Rig, *scripts: Script, adapters: tuple[wire.Adapter, ...] = (SQL,), **changes: Any
) -> Rig:
    """Start engines that should hold `adapters`, for two tenants with keys of their names."""
    await rig.start(*scripts)
    wanted = tuple(one.served_name for one in adapters)
    [first] = rig.table.pools
    by_load = msgspec.structs.replace(first.settings, policy="least_tokens")  # both are used
    endpoints = tuple(rig.endpoint(i, adapters=wanted, **changes) for i in range(len(rig.engines)))
    rig.apply(
        pools=(wire.Pool(name="p", model="m", version="1", overload="queue",
                         settings=by_load, endpoints=endpoints),),
        models=(wire.ModelRoute(model="m", aliases=("alias",),
                                split=(wire.WeightedPool(pool="p"),)),),
        adapters=adapters,
        open_access=False,
        tenants=tuple(wire.Tenant(name=t) for t in TENANTS),
        api_keys=tuple(wire.ApiKey(id=t, sha256=key_hash(t), tenant=t) for t in TENANTS),
    )  # fmt: skip
    return rig


def list_at(rig: Rig, *numbers: int, served: str = SQL.served_name) -> None:
    """Let engines list an adapter, as a probe would see it."""
    for i in numbers:
        rig.replica(i).adapters.note_listed((served,), time.monotonic())


async def ask(rig: Rig, tenant: str = "acme", **changes: Any) -> Reply:
    return await rig.ask(chat(**changes), authorization=f"Bearer {tenant}")


async def models(rig: Rig, path: str = "/v1/models", tenant: str = "acme") -> Reply:
    client = await RawClient.open(rig.port)
    lines = f"host: p\r\nauthorization: Bearer {tenant}\r\n"
    client.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    return await client.reply()


async def test_an_adapter_is_called_by_its_name_or_by_the_lora_field(rig: Rig) -> None:
    await started(rig, obliging(), obliging())
    list_at(rig, 1)
    ways: tuple[dict[str, Any], ...] = (
        {"model": "sql"},
        {"model": "acme/sql"},
        {"lora": "sql"},
        {"model": "alias", "lora": "sql", "temperature": 0.10},
        {"model": "sql", "stream": True},
    )
    for way in ways:
        assert (await ask(rig, **way)).status == 200
    assert rig.calls == [0, len(ways)]
    for call, way in zip(rig.engines[1].calls, ways, strict=True):
        sent = call.json()
        assert (sent["model"], sent.get("lora")) == (SQL.served_name, None)
        assert sent.get("temperature") == way.get("temperature")
    assert b'"temperature": 0.1' in rig.engines[1].calls[3].body
    assert {(r.model, r.adapter) for r in rig.records} == {("m", SQL.served_name)}


async def test_sglang_is_asked_for_the_base_and_its_adapter(rig: Rig) -> None:
    await started(rig, obliging(), engine="sglang", served_model="tiny")
    list_at(rig, 0)
    assert (await ask(rig, model="sql")).status == 200
    assert rig.engines[0].calls[0].json()["model"] == f"tiny:{SQL.served_name}"


@pytest.mark.parametrize("listed_at", [(0,), (0, 1)])
async def test_an_adapter_on_some_replicas_is_served_by_those_and_listed_once(
    rig: Rig, listed_at: tuple[int, ...]
) -> None:
    """R37: a hundred requests, none where it is not loaded; the list is the same each time."""
    await started(rig, obliging(), obliging(), obliging())
    list_at(rig, *listed_at)
    replies = await asyncio.gather(*(ask(rig, model="sql") for _ in range(100)))
    assert {reply.status for reply in replies} == {200}
    assert rig.calls[2] == 0
    assert [n > 0 for n in rig.calls] == [i in listed_at for i in range(3)]
    lists = [(await models(rig)).body for _ in range(10)]
    assert len(set(lists)) == 1
    assert [m["id"] for m in json.loads(lists[0])["data"]] == ["alias", "m", "sql"]


async def test_the_model_list_tells_each_tenant_what_it_may_call_and_what_it_stands_on(
    rig: Rig,
) -> None:
    shared = adapter("style", shared_with=("bravo",))
    both = (SQL.served_name, shared.served_name)
    await started(rig, adapters=(SQL, shared))
    assert [m["id"] for m in (await models(rig)).json()["data"]] == ["alias", "m"]
    rig.replica().adapters.note_listed(both, time.monotonic())
    told = {m["id"]: m.get("parent") for m in (await models(rig)).json()["data"]}
    assert told == {"alias": None, "m": None, "sql": "m", "style": "m"}
    listed = (await models(rig, tenant="bravo")).json()["data"]
    assert [m["id"] for m in listed] == ["alias", "m", "style"]
    for name in ("style", "acme%2Fstyle", "acme/style"):
        found = await models(rig, f"/v1/models/{name}", "bravo")
        assert (found.status, found.json()["parent"]) == (200, "m")
    assert (await models(rig, "/v1/models/sql", "bravo")).status == 404


@pytest.mark.parametrize("way", [{"model": "sql"}, {"lora": "sql"}])
async def test_nobody_else_can_call_an_adapter_and_no_base_model_answers_for_it(
    rig: Rig, way: dict[str, str]
) -> None:
    """R39: never existed, of another tenant, deleted: 404; loading, failed: 503 and when."""
    await started(rig)
    list_at(rig, 0)
    never = {name: "nope" for name in way}
    for reply in (await ask(rig, "bravo", **way), await ask(rig, **never)):
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    rig.replica().adapters.note_listed((), time.monotonic())
    rig.replica().adapters.load_s = 60.0  # more than anybody waits
    reply = await ask(rig, **way)
    assert (reply.status, reply.error["code"]) == (503, "adapter_loading")
    assert int(reply.headers["retry-after"]) > 0
    assert (await models(rig, "/v1/models/sql")).error["code"] == "adapter_loading"
    rig.replica().adapters.note_stage(SQL.served_name, "failed", time.monotonic(), message="/a/b")
    reply = await ask(rig, **way)
    assert (reply.status, reply.error["code"]) == (503, "adapter_failed")
    assert b"/a/b" not in reply.body
    assert rig.records[-1].adapter == SQL.served_name
    rig.apply(adapters=())
    reply = await ask(rig, **way)
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert rig.calls == [0]


async def test_a_model_that_the_tenant_may_not_call_is_not_called_by_its_adapter(rig: Rig) -> None:
    await started(rig)
    list_at(rig, 0)
    rig.apply(tenants=(wire.Tenant(name="acme", models=("other",)), wire.Tenant(name="bravo")))
    assert (await ask(rig, model="sql")).error["code"] == "model_not_allowed"
    assert (await models(rig)).json()["data"] == []


async def test_two_tenants_own_an_adapter_of_one_name_each_and_the_base_stays_the_base(
    rig: Rig,
) -> None:
    """R40."""
    other = adapter(tenant="bravo")
    await started(rig, adapters=(SQL, other))
    rig.replica().adapters.note_listed((SQL.served_name, other.served_name), time.monotonic())
    for tenant in TENANTS:
        await ask(rig, tenant, model="sql")
    for name in ("m", "alias"):
        await ask(rig, model=name)
    asked = [call.json()["model"] for call in rig.engines[0].calls]
    assert asked == [SQL.served_name, other.served_name, "m", "m"]


async def test_an_adapter_named_like_the_base_does_not_shadow_it(rig: Rig) -> None:
    """R40."""
    await started(rig)
    clash = adapter("m", served_name=f"acme.m.{HEX}")
    table = replace(rig.table, adapters=(clash,), epoch=rig.table.epoch + 1)
    change = rig.fleet.apply(table, now=time.monotonic(), wall=time.time())
    assert "a model has this name" in change.faults[0]
    assert (await ask(rig)).status == 200
    assert rig.engines[0].calls[0].json()["model"] == "m"


NOT_THERE = {
    "message": f"The model `{SQL.served_name}` does not exist. Valid aliases: m.",
    "type": "NotFoundError",
    "code": 404,
}


async def test_an_engine_that_lost_an_adapter_is_left_for_another_and_not_blamed(rig: Rig) -> None:
    """R38: it was restarted between two probes; no client sees its 404."""
    await started(rig, failing(404, {"error": NOT_THERE}), obliging())
    list_at(rig, 0, 1)
    replies = [await ask(rig, model="sql") for _ in range(6)]
    assert {reply.status for reply in replies} == {200}
    assert rig.calls == [1, 6]
    lost = rig.replica(0)
    assert (lost.errors_total, lost.breaker.state, lost.adapters.resident) == (0, "closed", set())
    assert lost.adapters.may_miss(time.monotonic())


async def test_an_adapter_that_was_lost_everywhere_is_a_503(rig: Rig) -> None:
    sglang = {"object": "error", "message": "Got LoRA adapter that has never been loaded: "
              + SQL.served_name, "code": 400}  # fmt: skip
    await started(rig, failing(400, sglang), engine="sglang")
    list_at(rig, 0)
    rig.replica().adapters.load_s = 60.0  # more than anybody waits
    for _ in range(2):
        reply = await ask(rig, model="sql", stream=True)
        assert (reply.status, reply.error["code"]) == (503, "adapter_loading")
        assert int(reply.headers["retry-after"]) > 0
    assert rig.calls == [1]


async def test_who_finds_an_adapter_lost_or_on_its_way_waits_until_it_is_loaded(rig: Rig) -> None:
    """R38, R39: one that was lost with its engine's restart, and one that is loaded just now."""
    lost: list[Call] = []

    async def restarted(call: Call) -> None:
        lost.append(call)
        script = failing(404, {"error": NOT_THERE}) if len(lost) == 1 else obliging()
        await script(call)

    await started(rig, restarted)
    held = rig.replica().adapters
    list_at(rig, 0)
    asking = [asyncio.ensure_future(ask(rig, model="sql"))]
    await until(lambda: SQL.served_name in held.missing and rig.proxy.waiting())
    asking.append(asyncio.ensure_future(ask(rig, model="sql")))
    await until(lambda: rig.proxy.waiting()[0].requests == 2)
    assert (await ask(rig)).status == 200  # the base model's requests pass
    list_at(rig, 0)
    assert {reply.status for reply in await asyncio.gather(*asking)} == {200}
    sent = [call.json()["model"] for call in rig.engines[0].calls]
    assert sent == [SQL.served_name, "m", SQL.served_name, SQL.served_name]
    held.note_restart(time.monotonic())
    waiting = asyncio.ensure_future(ask(rig, model="sql"))
    await until(lambda: bool(rig.proxy.waiting()))
    held.note_stage(SQL.served_name, "failed", time.monotonic(), message="no")
    assert (await waiting).error["code"] == "adapter_failed"


async def test_another_404_is_the_clients_own(rig: Rig) -> None:
    await started(rig, failing(404, {"detail": "Not Found"}))
    list_at(rig, 0)
    assert (await ask(rig, model="sql")).json() == {"detail": "Not Found"}
    assert rig.replica().adapters.resident


async def test_requests_under_way_are_known_by_adapter_until_they_end(rig: Rig) -> None:
    """R41: who is about to unload it waits for them."""
    gate = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("one"))
        await gate.wait()
        await call.stream_rest(event(finish="stop"), DONE)

    await started(rig, slow)
    list_at(rig, 0)
    asking = asyncio.ensure_future(ask(rig, model="sql", stream=True))
    await until(lambda: rig.replica().adapters.running == {SQL.served_name: 1})
    rig.apply(adapters=())
    assert (await ask(rig, model="sql")).status == 404
    gate.set()
    assert (await asking).text == "one"
    assert not rig.replica().adapters.running


async def test_who_waits_for_a_full_holder_lets_the_others_pass(rig: Rig) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    def held(gate: asyncio.Event) -> Script:
        async def script(call: Call) -> None:
            await gate.wait()
            await call.answer(200, completion())

        return script

    await started(rig, *map(held, gates))
    [p] = rig.table.pools
    settings = wire.PoolSettings(max_concurrency_per_replica=1, slow_start_s=0)
    rig.apply(pools=(replace(p, settings=settings),))
    list_at(rig, 0)
    first = asyncio.ensure_future(ask(rig, model="sql"))
    await rig.engines[0].called()
    other = asyncio.ensure_future(ask(rig))
    await rig.engines[1].called()
    waiting = [asyncio.ensure_future(ask(rig, model=m)) for m in ("sql", "sql", "m")]
    await until(lambda: len(rig.proxy.line("p")) == 3)
    gates[1].set()
    assert [(await one).status for one in (other, waiting[2])] == [200, 200]
    assert not first.done()
    assert not waiting[0].done()
    assert len(rig.proxy.line("p")) == 2
    gates[0].set()
    assert {(await one).status for one in (first, *waiting)} == {200}
    assert [c.json()["model"] for c in rig.engines[1].calls] == ["m", "m"]


async def test_a_request_in_the_queue_waits_for_a_replica_that_holds_its_adapter(rig: Rig) -> None:
    await started(rig, obliging(gap_s=0.02), obliging())
    [p] = rig.table.pools
    settings = wire.PoolSettings(max_concurrency_per_replica=1, slow_start_s=0)
    rig.apply(pools=(replace(p, settings=settings),))
    list_at(rig, 0)
    replies = await asyncio.gather(*(ask(rig, model="sql", stream=True) for _ in range(5)))
    assert {reply.status for reply in replies} == {200}
    assert rig.calls == [5, 0]
