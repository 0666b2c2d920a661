"""Choosing by prefix over real sockets: what agents learn by what they send, and what they drop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from routing_agent import wire
from routing_agent.core.explain import explain
from routing_agent.metrics_page import render
from routing_agent.proxy.prompt import chained
from routing_agent.proxy.request import parse
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import Call, completion, event, failing, in_turn, obliging, usage_event

HOT = "You are a patient teacher of geography. " * 52  # 2 KB: eight blocks
STREAM = {"stream": True}


def turn(*texts: str, **changes: Any) -> dict[str, Any]:
    """One turn of a conversation whose system text is hot; no session key."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": HOT}] + [
        {"role": roles[i % 2], "content": text} for i, text in enumerate(texts)
    ]
    return chat(messages=messages, **changes)


async def by_prefix(rig: Rig, *scripts: Any, **settings: Any) -> None:
    await rig.start(*scripts)
    rig.configure(policy="expected_ttft", **settings)


def counted(prompt: int, cached: int | None) -> Any:
    async def script(call: Call) -> None:
        answer = completion(prompt=prompt)
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
        await call.answer(200, answer)

    return script


async def test_a_hot_prefix_stays_where_it_is_and_another_prompt_goes_elsewhere(rig: Rig) -> None:
    """R28: requests one after the other, of different users, follow the prefix they share."""
    await by_prefix(rig, obliging(), obliging(), obliging())
    first = await rig.ask(turn("q0"))
    home = first.headers["x-signalbox-replica"]
    replies = [await rig.ask(turn(f"q{i}", **(STREAM if i % 2 else {}))) for i in range(1, 10)]
    assert {r.headers["x-signalbox-replica"] for r in replies} == {home}
    assert {r.headers["x-signalbox-route"] for r in replies} == {"prefix"}
    await until(lambda: not rig.proxy.running_requests)
    held = {r.id: len(r.profile) for r in rig.fleet.replicas.values()}
    assert held[home] == 8
    assert sum(held.values()) == 8


async def test_a_hot_prefix_does_not_bury_its_replica(rig: Rig) -> None:
    """R28: what waits for its first token is charged at the choice, so a burst spreads."""
    gate = asyncio.Event()

    async def slow(call: Call) -> None:
        await gate.wait()
        await obliging()(call)

    await by_prefix(rig, slow, slow)
    home = rig.fleet.replicas["r0"]
    home.fit_profile(64.0)
    home.profile.insert(blocks_of(rig, turn("warm")), time.monotonic())
    asked = [asyncio.ensure_future(rig.ask(turn(f"q{i}" * 900))) for i in range(24)]
    await until(lambda: sum(rig.calls) == 24)
    came_to = list(rig.calls)
    gate.set()
    await asyncio.gather(*asked)
    assert min(came_to) >= 6


def blocks_of(rig: Rig, body: dict[str, Any]) -> list[int]:
    """The blocks a request has, by what `explain` would be told."""
    parsed = parse(msgspec.json.encode(body), "/v1/chat/completions")
    assert parsed.envelope is not None
    assert rig.fleet.table is not None
    return chained(parsed.envelope, rig.fleet.table, version="1", adapter="")[0]


async def test_every_way_out_gives_back_what_waits(rig: Rig) -> None:
    """The charge of a prompt is released by the one guard, at the first token or at any end."""

    async def breaking(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("x"))
        call.reset()

    async def endless(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.peer_closed.wait()

    kinds = (failing(500), breaking, obliging(), failing(400), endless)
    await by_prefix(rig, in_turn(*kinds), in_turn(*kinds), breaker_failures=1000)
    for number in range(10):
        client = await RawClient.open(rig.port)
        client.post(turn(f"q{number}", stream=number % 2 == 0))
        await asyncio.sleep(0.02)
        client.reset()
    await until(lambda: len(rig.records) == 10)
    await until(lambda: not rig.proxy.running_requests)
    assert [r.prefill.waiting for r in rig.fleet.replicas.values()] == [0, 0]


async def test_another_process_has_none_of_what_the_old_one_held(rig: Rig) -> None:
    """Its profile and the work charged to it are dropped at once; a new address is another one."""
    await by_prefix(rig, obliging(), obliging())
    reply = await rig.ask(turn("q0"))
    home = rig.fleet.replicas[reply.headers["x-signalbox-replica"]]
    assert len(home.profile) == 8
    home.note_restart(time.monotonic())
    assert len(home.profile) == 0
    await rig.ask(turn("q1"))
    moved = wire.Endpoint(replica="r0", url=rig.engines[1].url)
    rig.set_endpoints(moved, wire.Endpoint(replica="r1", url=rig.engines[0].url))
    assert [len(r.profile) for r in rig.fleet.replicas.values()] == [0, 0]


async def test_what_the_engine_counts_corrects_what_was_believed(rig: Rig) -> None:
    """An engine that had none of a prompt has none of what was last used before it either."""
    await by_prefix(rig, obliging(), obliging())
    home = rig.fleet.replicas["r0"]
    now = time.monotonic()
    home.fit_profile(64.0)
    home.profile.insert(list(range(1, 50)), now - 20)
    home.profile.insert(blocks_of(rig, turn("q")), now - 10)
    for engine, script in zip(rig.engines, (counted(520, 0), obliging()), strict=True):
        engine.script = script
    reply = await rig.ask(turn("q"))
    assert reply.headers["x-signalbox-replica"] == "r0"
    await until(lambda: not rig.proxy.running_requests)
    assert len(home.profile) == 8, "the prompt itself is there now, what was older is gone"
    assert home.cache.tells_cached
    home.profile.insert(list(range(1, 50)), time.monotonic())
    rig.engines[0].script = counted(520, 500)
    await rig.ask(turn("q"))
    await until(lambda: not rig.proxy.running_requests)
    assert len(home.profile) == 57
    assert home.cache.expected_tokens_total > 900


async def test_policies_without_prefixes_and_pools_of_one_know_of_none(rig: Rig) -> None:
    await rig.start(obliging(), obliging())
    rig.configure(policy="least_tokens")
    await rig.ask(turn("q0"))
    rig.configure(policy="expected_ttft")
    rig.set_endpoints(rig.endpoint(0))
    await rig.ask(turn("q0"))
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1))
    rig.fleet.replicas["r1"].note_doubt("answers", "it is not itself")
    await rig.ask(turn("q0"))
    await until(lambda: not rig.proxy.running_requests)
    assert [len(r.profile) for r in rig.fleet.replicas.values()] == [0, 0]


async def test_explain_shows_what_the_choice_weighs(rig: Rig) -> None:
    await by_prefix(rig, obliging(), obliging())
    await rig.ask(chat(messages=[{"role": "user", "content": HOT}]))
    await until(lambda: not rig.proxy.running_requests)
    told = explain(rig.fleet, wire.ExplainRequest(model="m", prompt=HOT), now=time.monotonic())
    assert told.route == "prefix"
    chosen = next(c for c in told.candidates if c.replica == told.replica)
    other = next(c for c in told.candidates if c.replica != told.replica)
    assert chosen.terms["uncached_tokens"] < 64 < other.terms["uncached_tokens"]


async def test_streams_tell_the_engines_count_too(rig: Rig) -> None:
    async def told(call: Call) -> None:
        await call.stream(event("a"), event(finish="stop"), usage_event(520, 2, cached=500))

    await by_prefix(rig, told, told)
    for number in range(2):
        await rig.ask(turn(f"q{number}", stream=True))
    await until(lambda: not rig.proxy.running_requests)
    home = next(r for r in rig.fleet.replicas.values() if len(r.profile))
    assert home.cache.expected_tokens_total >= 500
    assert home.prefill.tokens_per_s > 0


async def test_who_leaves_the_agents_zone_is_counted_with_the_reason(rig: Rig) -> None:
    await rig.start(obliging(), obliging())
    [row] = rig.table.pools
    rig.fleet.given_zone = "a"
    ends = tuple(rig.endpoint(i, zone="ab"[i]) for i in range(2))
    rig.apply(pools=(msgspec.structs.replace(row, endpoints=ends),))
    for _ in range(6):
        assert (await rig.ask(chat())).status == 200
    assert (rig.calls, dict(rig.proxy.metrics.spills_total)) == ([6, 0], {})
    rig.replica(0).note_health(False, "off", time.monotonic())
    assert (await rig.ask(chat())).status == 200
    assert rig.calls == [6, 1]
    page = render(rig.proxy.metrics, rig.fleet, now=time.monotonic())
    assert 'signalbox_zone_spills_total{pool="p",reason="no_replica"} 1' in page


async def test_explain_of_a_conversation_is_what_its_next_turn_meets(rig: Rig) -> None:
    await by_prefix(rig, obliging(), obliging(), obliging(), session_margin_s=0.0)
    for texts in (("q0",), ("q0", "a", "q1")):
        home = (await rig.ask(turn(*texts))).headers["x-signalbox-replica"]
    await until(lambda: not rig.proxy.running_requests)
    body = turn("q0", "a", "q1", "b", "q2")
    messages = tuple(wire.ExplainMessage(**message) for message in body["messages"])
    asked = wire.ExplainRequest(model="m", tenant="local", messages=messages)
    told = explain(rig.fleet, asked, now=time.monotonic())
    parsed = parse(msgspec.json.encode(body), "/v1/chat/completions")
    pool = rig.fleet.pools["p"]
    blocks, _ = chained(parsed.envelope, rig.fleet.table, version="1", adapter="")
    held = pool.by_id(home).profile.matching(blocks)
    terms = {one.replica: one.terms for one in told.candidates}
    assert (told.replica, told.route) == (home, "affinity")
    assert terms[home]["uncached_tokens"] < min(
        t["uncached_tokens"] for name, t in terms.items() if name != home
    )
    assert held == 8
