"""Copied traffic: compared, never billed, dropped first, and nobody waits for it (R34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from routing_agent import wire
from routing_agent.core.sampling import is_copied
from routing_agent.core.table import compile_table
from routing_agent.proxy import shadows
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import (
    DONE,
    Call,
    closing,
    completion,
    event,
    failing,
    hanging,
    in_turn,
    obliging,
)

STREAM = chat(stream=True)


class Pairs(Rig):
    """Engine 0 answers clients, engine 1 is the shadow."""

    pairs: list[wire.ShadowPair]

    async def begin(self, shadow: Any, primary: Any = None, **given: Any) -> None:
        self.pairs = []
        self.proxy.on_pair = self.pairs.append
        await self.start(primary or obliging(), shadow)
        self.shadow(**given)

    def shadow(self, *, settings: dict[str, Any] | None = None, **given: Any) -> None:
        """Apply a table in which the pool "s" of engine 1 is the shadow of "p" of engine 0."""
        fields = {"pool": "s", "ratio": 1.0, "at_once": 4, "keep": "answers"} | given
        knobs = wire.PoolSettings(**{"retry_backoff_s": 0.01, "slow_start_s": 0} | (settings or {}))
        pools = [
            wire.Pool(
                name=name,
                model="m",
                version=version,
                overload="queue",
                settings=knobs,
                endpoints=(self.endpoint(i),),
                shadow=wire.Shadow(**fields) if name == "p" else None,
            )
            for i, (name, version) in enumerate((("p", "1"), ("s", "2")))
        ]
        route = wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),))
        self.apply(models=(route,), pools=tuple(pools))

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.metrics.shadows)

    async def pair(self) -> wire.ShadowPair:
        await until(lambda: self.pairs)
        return self.pairs[-1]


@pytest.fixture
async def rig() -> AsyncIterator[Pairs]:
    made = Pairs()
    yield made
    await made.stop()


async def test_both_answers_are_compared_and_only_the_primarys_is_seen(rig: Pairs) -> None:
    await rig.begin(obliging(("one", " two", " four")))
    reply = await rig.ask(STREAM, x_request_id="req-1")
    assert reply.text == "one two three"
    assert reply.headers["x-signalbox-version"] == "1"
    pair = await rig.pair()
    assert (pair.request_id, pair.pool, pair.shadow_pool) == ("req-1", "p", "s")
    assert (pair.is_same, pair.first_difference) == (False, 8 + len("f") - 1)
    assert (pair.primary.text, pair.shadow.text) == ("one two three", "one two four")
    assert (pair.primary.version, pair.shadow.version) == ("1", "2")
    assert (pair.primary.output_tokens, pair.shadow.output_tokens) == (3, 3)
    assert pair.shadow.prompt_tokens == 11
    assert pair.shadow.ttft_s is not None
    assert pair.shadow.duration_s is not None
    assert pair.shadow.duration_s >= pair.shadow.ttft_s
    assert pair.prompt == ""
    assert rig.outcomes == {"answered": 1}


async def test_the_same_plain_answer_is_the_same(rig: Pairs) -> None:
    await rig.begin(obliging(), keep="prompts")
    assert (await rig.ask(chat())).status == 200
    pair = await rig.pair()
    assert (pair.is_same, pair.first_difference) == (True, None)
    assert "hello" in pair.prompt
    sent = rig.engines[1].calls[0]
    assert sent.json() == chat()
    assert sent.header("x-request-id") == f"{pair.request_id}-shadow"


async def test_without_a_word_to_the_contrary_no_text_is_kept(rig: Pairs) -> None:
    await rig.begin(obliging(("other",)), keep="figures")
    await rig.ask(chat())
    pair = await rig.pair()
    assert (pair.primary.text, pair.shadow.text, pair.prompt) == ("", "", "")
    assert (pair.is_same, pair.first_difference) == (False, 1)  # "one" and "other"
    assert pair.primary.text_length == len("one two three")


async def test_a_shadow_is_never_billed_nor_counted(rig: Pairs) -> None:
    await rig.begin(obliging())
    for _ in range(3):
        await rig.ask(chat())
    await until(lambda: len(rig.pairs) == 3)
    assert [r.pool for r in rig.records] == ["p"] * 3
    rig.metrics.settle()
    assert {key[0] for key in rig.metrics.requests} == {"p"}
    shadow = rig.replica(1)
    assert (shadow.requests_total, shadow.output_tokens_total, shadow.errors_total) == (0, 0, 0)
    assert rig.metrics.tenants["local"].requests.total == {"200": 3}


@pytest.mark.parametrize(
    ("shadow", "said"),
    [
        (failing(500), "the engine answered 500"),
        (closing, "broke off"),
    ],
)
async def test_a_shadow_that_fails_is_told_and_breaks_nothing(
    rig: Pairs, shadow: Any, said: str
) -> None:
    await rig.begin(shadow, settings={"breaker_failures": 1})
    for _ in range(3):
        assert (await rig.ask(STREAM)).text == "one two three"
        pair = await rig.pair()
        assert said in pair.shadow.error
        assert not pair.is_same
        assert pair.first_difference is None
    await until(lambda: rig.outcomes == {"failed": 3})
    assert rig.replica(1).breaker.state == "closed"


async def test_garbage_and_refused_connections_are_failures_of_the_shadow(rig: Pairs) -> None:
    async def garbage(call: Call) -> None:
        await call.send(b"this is not HTTP\r\n\r\n")

    async def cut_off(call: Call) -> None:
        await call.stream(event("one"))

    await rig.begin(garbage)
    assert (await rig.ask(chat())).status == 200
    assert "not HTTP" in (await rig.pair()).shadow.error
    rig.engines[1].script = cut_off
    assert (await rig.ask(STREAM)).status == 200
    await until(lambda: len(rig.pairs) == 2)
    assert rig.pairs[1].shadow.error == "the stream did not end well"
    await rig.engines[1].stop()
    assert (await rig.ask(chat())).status == 200
    await until(lambda: len(rig.pairs) == 3)
    assert "cannot connect" in rig.pairs[2].shadow.error


async def test_a_stalled_shadow_delays_nobody_and_holds_few_places(rig: Pairs) -> None:
    """R34: hung for ever, every request copied; clients do not notice."""
    await rig.begin(hanging, at_once=4)
    replies = [await rig.ask(chat()) for _ in range(30)]
    assert {r.status for r in replies} == {200}
    # One that had waited for its shadow would have seen it end, and another take its place.
    assert len(rig.engines[1].calls) == 4
    assert rig.outcomes == {"dropped_limit": 26}
    assert len(rig.proxy.shadows.copies) == 4


async def test_a_shadow_has_limits_of_time(rig: Pairs) -> None:
    await rig.begin(hanging, settings={"ttft_limit_s": 0.2})
    assert (await rig.ask(STREAM)).status == 200
    pair = await rig.pair()
    assert "limits" in pair.shadow.error
    assert rig.outcomes == {"timed_out": 1}
    call = rig.engines[1].calls[0]
    await asyncio.wait_for(call.peer_closed.wait(), 5)


async def test_a_shadow_that_stalls_in_its_stream_is_ended(rig: Pairs) -> None:
    async def stalling(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("one"))
        await call.peer_closed.wait()

    await rig.begin(stalling, settings={"stall_limit_s": 0.2})
    await rig.ask(STREAM)
    assert (await rig.pair()).shadow.text == "one"
    assert rig.outcomes == {"timed_out": 1}


async def test_a_client_that_leaves_ends_its_copy(rig: Pairs) -> None:
    await rig.begin(hanging, primary=hanging)
    client = await RawClient.open(rig.port)
    client.post(chat())
    call = (await rig.engines[1].called())[0]
    client.writer.transport.abort()
    await asyncio.wait_for(call.peer_closed.wait(), 5)
    await until(lambda: rig.outcomes == {"cancelled": 1})
    assert (rig.pairs, rig.proxy.shadows.copies) == ([], set())


async def test_shadows_are_dropped_while_real_requests_wait(rig: Pairs) -> None:
    """The primary's pool is full: no copy of what waits, nor of what comes."""
    gate = asyncio.Event()

    async def gated(call: Call) -> None:
        await gate.wait()
        await call.answer(200, completion())

    await rig.begin(obliging(), primary=gated, settings={"max_concurrency_per_replica": 1})
    first = asyncio.create_task(rig.ask(chat()))
    await rig.engines[0].called()
    await until(lambda: rig.outcomes == {"answered": 1})
    more = [asyncio.create_task(rig.ask(chat())) for _ in range(3)]
    await until(lambda: len(rig.proxy.line("p")) == 3)
    gate.set()
    assert {(await task).status for task in (first, *more)} == {200}
    await until(lambda: sum(rig.outcomes.values()) == 4)
    assert rig.outcomes["dropped_load"] >= 2


async def test_a_copy_gives_way_to_a_request_that_must_wait_in_its_pool(rig: Pairs) -> None:
    """The shadow's pool serves clients too: they come first."""
    await rig.begin(hanging, settings={"max_concurrency_per_replica": 1})
    p, s = rig.table.pools
    split = tuple(wire.WeightedPool(pool=name) for name in ("s",))
    rig.apply(
        models=(
            wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),)),
            wire.ModelRoute(model="n", split=split),
        ),
        pools=(p, s),
    )
    await rig.ask(chat())
    await rig.engines[1].called()
    copied = rig.engines[1].calls[0]
    clients = [asyncio.create_task(rig.ask(chat(model="n"))) for _ in range(2)]
    await asyncio.wait_for(copied.peer_closed.wait(), 5)
    assert rig.outcomes == {"evicted": 1}
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def test_no_copy_without_a_replica_that_has_room(rig: Pairs) -> None:
    await rig.begin(obliging())
    rig.replica(1).note_doubt("answers", "draining")
    assert (await rig.ask(chat())).status == 200
    assert rig.outcomes == {"dropped_no_replica": 1}


async def test_the_share_is_by_request_id_and_the_same_everywhere(rig: Pairs) -> None:
    await rig.begin(obliging(), ratio=0.3, at_once=64)
    for i in range(60):
        await rig.ask(chat(), x_request_id=f"req-{i}")
    await until(lambda: not rig.proxy.shadows.copies)
    assert 5 <= len(rig.pairs) <= 32
    assert {p.request_id for p in rig.pairs} == {
        f"req-{i}" for i in range(60) if is_copied(f"req-{i}".encode(), 0.3)
    }


async def test_what_cannot_be_compared_is_not_copied(rig: Pairs) -> None:
    await rig.begin(obliging())
    await rig.ask({"model": "m", "input": "x"}, path="/v1/embeddings")
    assert (rig.calls, rig.outcomes) == ([1, 0], {})


async def test_a_primary_that_is_tried_again_is_compared_by_its_good_answer(rig: Pairs) -> None:
    await rig.begin(obliging(), primary=in_turn(failing(500), obliging()))
    reply = await rig.ask(STREAM)
    assert (reply.status, reply.text) == (200, "one two three")
    pair = await rig.pair()
    assert pair.is_same
    assert rig.calls == [2, 1]


async def test_a_primary_that_fails_is_paired_with_what_the_shadow_said(rig: Pairs) -> None:
    await rig.begin(obliging(), primary=failing(400))
    assert (await rig.ask(chat())).status == 400
    pair = await rig.pair()
    assert (pair.primary.status, pair.shadow.status, pair.is_same) == (400, 200, False)


async def test_long_answers_are_cut(rig: Pairs) -> None:
    words = ("x" * 5000,) * 20
    await rig.begin(obliging(words), primary=obliging(words))
    await rig.ask(STREAM)
    pair = await rig.pair()
    assert pair.primary.is_cut
    assert pair.shadow.is_cut
    assert pair.is_same
    assert len(pair.shadow.text) == 4000 < pair.shadow.text_length


async def test_an_agent_that_ends_gives_its_copies_up(rig: Pairs) -> None:
    await rig.begin(hanging)
    await rig.ask(chat())
    await rig.engines[1].called()
    rig.proxy.shadows.close()
    assert rig.outcomes == {"cancelled": 1}
    assert rig.proxy.shadows.copies == set()


async def test_a_pair_that_cannot_be_kept_costs_no_request(rig: Pairs) -> None:
    await rig.begin(obliging())

    def full(pair: wire.ShadowPair) -> None:
        raise OSError("disk full")

    rig.proxy.on_pair = full
    assert (await rig.ask(chat())).status == 200
    await until(lambda: rig.outcomes == {"answered": 1})
    rig.proxy.on_pair = None
    assert (await rig.ask(chat())).status == 200


async def test_open_pairs_are_bounded(rig: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long answers of primaries whose shadows are done long since."""
    if not hasattr(shadows.Shadows, "__mypyc_attrs__"):
        monkeypatch.setattr(shadows, "OPEN_PAIRS", 2)
    gate = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("one"))
        await gate.wait()
        await call.stream_rest(event(finish="stop"), DONE)

    await rig.begin(obliging(), primary=slow)
    asked = [asyncio.create_task(rig.ask(STREAM)) for _ in range(3)]
    await rig.engines[0].called(3)
    await until(lambda: sum(rig.outcomes.values()) >= 3)
    if shadows.OPEN_PAIRS == 2:
        assert rig.outcomes["dropped_limit"] == 1
    gate.set()
    await asyncio.gather(*asked)


async def test_a_table_whose_shadow_is_not_there_goes_without(rig: Pairs) -> None:
    await rig.begin(obliging())
    p, _ = rig.table.pools
    compiled = compile_table(
        wire.RoutingTable(lineage="l", epoch=1, fleet_revision=0, pools=(p,), models=())
    )
    assert compiled.faults == ("pool 'p': no shadow pool 's'",)
    assert compiled.pools["p"].shadow is None
