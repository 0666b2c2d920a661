"""Streams that break and go on elsewhere: each text once, each token once, or an explicit error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace as with_changes
from typing import Any

import pytest
from msgspec.structs import replace

from routing_agent import wire
from routing_agent.proxy.answer import Failed
from routing_agent.proxy.transcript import BATCH_BYTES, TEXT_LIMIT_BYTES, Transcript
from routing_agent.simulation.faults import Crash, Faults
from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer
from tests.agent.proxy.client import RawClient, Reply, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import DONE, Call, event, failing, in_turn, usage_event

STREAM = chat(stream=True, max_tokens=20)
WORDS = ("one", " two", " three", " four", " five")


def role_event() -> bytes:
    return event("").replace(b'{"content":""}', b'{"role":"assistant","content":""}')


def breaking(*words: str, how: str = "reset") -> Any:
    """Say some words, then break off."""

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(role_event() + b"".join(event(word) for word in words))
        await call.pause(0.05)
        if how == "reset":
            call.reset()
        elif how == "close":
            call.close()
        elif how == "error":
            error = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'
            await call.stream_rest(error, DONE)
        elif how == "abort":
            await call.stream_rest(event("", finish="abort"), DONE)
        else:
            await call.peer_closed.wait()

    return script


async def going_on(call: Call) -> None:
    """Write on where the last message, or the prompt, ends; or all of it if nothing was said."""
    asked = call.json()
    if "prompt" in asked:
        said = asked["prompt"].removeprefix("count: ")
    else:
        last = asked["messages"][-1]
        said = last["content"] if last["role"] == "assistant" else ""
        assert ("continue_final_message" in asked) == bool(said)
    rest = "".join(WORDS)[len(said) :].split(" ")
    words = [(" " * bool(i) if said or i else "") + word for i, word in enumerate(rest)]
    events = [event(word, id="other") for word in words if word]
    if "prompt" in asked:
        events = [text_event(word) for word in words if word]
    prompt = 11 + len(said.split())
    events += [event(finish="stop")] if "prompt" not in asked else [text_event("", finish="stop")]
    await call.stream(role_event(), *events, usage_event(prompt, len(rest) - 1), DONE)


def text_event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "t", "choices": [choice]}).encode() + b"\n\n"


async def started(rig: Rig, *scripts: Any, **settings: Any) -> Rig:
    """Start engines that are asked in this order."""
    await rig.start(*scripts)
    rig.configure(broken_stream="continue", policy="round_robin", **settings)
    rig.fleet.pools["p"].cursor = -1
    return rig


def ended_well(reply: Reply) -> bool:
    return reply.events[-1] == "[DONE]" and "error" not in reply.body.decode()


@pytest.mark.parametrize("how", ["reset", "close", "error", "abort", "stall"])
async def test_a_broken_chat_goes_on_elsewhere_word_by_word(rig: Rig, how: str) -> None:
    """R04: `one two three four five`, once."""
    limit_s = 1.0 if how == "stall" else 10.0
    await started(rig, breaking("one", " two", " three", how=how), going_on, stall_limit_s=limit_s)
    reply = await rig.ask(STREAM)
    assert reply.text == "one two three four five"
    assert ended_well(reply)
    assert rig.calls == [1, 1]
    assert (reply.headers["x-signalbox-replica"], reply.headers["x-signalbox-route"]) == (
        "r0",
        "load",
    )
    assert rig.replica(0).errors_total == 1
    assert rig.replica(1).errors_total == 0
    assert rig.records[0].attempts == 2
    assert rig.records[0].status == 200


async def test_the_other_engine_gets_the_text_so_far_and_fewer_tokens(rig: Rig) -> None:
    """Every other byte of the request is as the client wrote it."""
    await started(rig, breaking("one", " two", " three"), going_on)
    body = {**STREAM, "temperature": 0.1, "big": 9007199254740993, "min_tokens": 2}
    await rig.ask(json.dumps(body).replace("0.1,", "0.10,").encode())
    (call,) = rig.engines[1].calls
    assert b'"temperature": 0.10,' in call.body
    asked = call.json()
    added = asked["messages"].pop()
    assert added == {"role": "assistant", "content": "one two three"}
    assert (asked.pop("continue_final_message"), asked.pop("add_generation_prompt")) == (
        True,
        False,
    )
    assert (asked.pop("max_tokens"), asked.pop("min_tokens")) == (17, 0)
    assert asked.pop("stream_options") == {"include_usage": True}  # ours: the client wanted none
    assert asked == {k: v for k, v in body.items() if k not in ("max_tokens", "min_tokens")}


@pytest.mark.parametrize("asks", [True, False])
async def test_usage_is_of_the_whole_stream_and_counted_once(rig: Rig, asks: bool) -> None:
    """What was sent before is output, though the other engine read it as prompt."""
    await started(rig, breaking("one", " two", " three"), going_on)
    options = {"stream_options": {"include_usage": True}} if asks else {}
    reply = await rig.ask({**STREAM, **options})
    told = [json.loads(data) for data in reply.events[:-1] if "prompt_tokens" in data]
    assert [chunk["usage"] for chunk in told] == (
        [{"prompt_tokens": 11, "completion_tokens": 5}] if asks else []
    )
    (record,) = rig.records
    assert (record.prompt_tokens, record.output_tokens, record.estimated) == (11, 5, True)
    assert rig.replica(0).output_tokens_total + rig.replica(1).output_tokens_total == 5


async def test_usage_told_with_every_event_makes_the_count_exact(rig: Rig) -> None:
    """Two tokens in an event count as two."""

    async def telling(call: Call) -> None:
        usage = {"prompt_tokens": 11, "completion_tokens": 4}
        await call.head(200, "text/event-stream")
        await call.chunk(event("one two three", usage=usage))
        call.reset()

    await started(rig, telling, going_on)
    await rig.ask(STREAM)
    assert rig.engines[1].calls[0].json()["max_tokens"] == 16
    assert (rig.records[0].output_tokens, rig.records[0].estimated) == (6, False)


async def test_what_the_other_engine_had_cached_is_no_more_than_the_prompt(rig: Rig) -> None:
    """It may have had the text so far in its cache, which was output."""

    async def cached(call: Call) -> None:
        await call.stream(event("b"), event(finish="stop"), usage_event(14, 1, cached=13), DONE)

    await started(rig, breaking("one", " two", " three"), cached)
    reply = await rig.ask({**STREAM, "stream_options": {"include_usage": True}})
    (usage,) = [json.loads(data)["usage"] for data in reply.events[:-1] if "prompt_t" in data]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]) == (11, {"cached_tokens": 11})
    assert rig.records[0].cached_prompt_tokens == 11


async def test_the_seam_does_not_show(rig: Rig) -> None:
    """One id, one role, one end."""
    await started(rig, breaking("one", " two"), going_on)
    reply = await rig.ask(STREAM)
    chunks = [json.loads(data) for data in reply.events[:-1]]
    assert {chunk["id"] for chunk in chunks} == {"c"}
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert sum("role" in delta for delta in deltas) == 1
    assert reply.events.count("[DONE]") == 1
    assert sum('"stop"' in data for data in reply.events) == 1


async def test_a_completion_goes_on_behind_its_prompt(rig: Rig) -> None:
    """Any engine can do that."""

    async def half(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(text_event("one") + text_event(" two"))
        call.reset()

    await started(rig, half, going_on)
    rig.set_endpoints(*(rig.endpoint(i, engine="openai") for i in range(2)))
    rig.fleet.pools["p"].cursor = -1
    body = {"model": "m", "prompt": "count: ", "stream": True, "max_tokens": 9}
    reply = await rig.ask(body, path="/v1/completions")
    texts = [c["text"] for data in reply.events[:-1] for c in json.loads(data)["choices"]]
    assert "".join(texts) == "one two three four five"
    assert ended_well(reply)
    assert rig.engines[1].calls[0].json()["prompt"] == "count: one two"


async def test_a_second_break_is_continued_too_and_a_third_is_the_end(rig: Rig) -> None:
    """Bounded by the retries; what was sent stays sent."""

    def from_where_it_was(count: int) -> Any:
        async def script(call: Call) -> None:
            last = call.json()["messages"][-1]["content"]
            said = len(last.split()) if last != "hello" else 0
            await breaking(*WORDS[said : said + count])(call)

        return script

    await started(rig, *(from_where_it_was(1) for _ in range(4)))
    reply = await rig.ask(STREAM)
    assert reply.text == "one two three"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    assert sum(rig.calls) == 3
    assert max(rig.calls) == 1
    assert rig.records[0].status == 502
    assert rig.records[0].output_tokens == 3


async def test_white_space_at_the_seam_is_neither_lost_nor_doubled(rig: Rig) -> None:
    """Templates trim the last message; models write its line ends again."""

    async def paragraphs(call: Call) -> None:
        assert call.json()["messages"][-1]["content"] == "first."
        await call.stream(role_event(), event("\n"), event("\nsecond."), event(finish="stop"), DONE)

    await started(rig, breaking("first.", "\n\n"), paragraphs)
    assert (await rig.ask(STREAM)).text == "first.\n\nsecond."


async def test_with_nothing_said_yet_it_begins_again(rig: Rig) -> None:
    """White space alone is no text to write on."""

    async def other(call: Call) -> None:
        assert len(call.json()["messages"]) == 1
        await call.stream(role_event(), event("hi"), event(finish="stop"), DONE)

    await started(rig, breaking(" "), other)
    reply = await rig.ask(STREAM)
    assert (reply.text, ended_well(reply)) == (" hi", True)


NOT_CONTINUED = [
    {"n": 2},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"logprobs": True},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "a+"},
    {"seed": 7},
    {"max_tokens": 3},
    {"add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
]


@pytest.mark.parametrize("fields", NOT_CONTINUED, ids=lambda fields: next(iter(fields)))
async def test_what_is_more_than_text_ends_with_an_error(rig: Rig, fields: dict[str, Any]) -> None:
    """R04: an explicit error, no second request."""
    await started(rig, breaking("one", " two", " three"), going_on)
    reply = await rig.ask({**STREAM, **fields})
    assert reply.text == "one two three"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    assert rig.calls == [1, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": [], "logprobs": False},
        {"seed": 7, "temperature": 0},
        {"response_format": {"type": "text"}},
        {"max_completion_tokens": 50},
    ],
)
async def test_fields_that_ask_for_nothing_more_do_not_stand_against_it(
    rig: Rig, fields: dict[str, Any]
) -> None:
    """Clients send defaults."""
    await started(rig, breaking("one"), going_on)
    assert (await rig.ask({**STREAM, **fields})).text == "one two three four five"


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0}]},
        {"reasoning_content": "hm"},
    ],
)
async def test_an_answer_that_is_more_than_text_ends_with_an_error(
    rig: Rig, delta: dict[str, Any]
) -> None:
    """Whatever the request said."""

    async def more(call: Call) -> None:
        chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        await call.head(200, "text/event-stream")
        await call.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n" + event("one"))
        call.reset()

    await started(rig, more, going_on)
    reply = await rig.ask(STREAM)
    assert "error" in json.loads(reply.events[-1])
    assert rig.calls == [1, 0]


async def test_a_pool_that_ends_broken_streams_keeps_no_text(rig: Rig) -> None:
    """Off by default, and free."""
    await rig.start(breaking("one"), going_on)
    rig.configure(policy="round_robin")
    rig.fleet.pools["p"].cursor = -1
    running = asyncio.create_task(rig.ask(STREAM))
    await rig.engines[0].called()
    (exchange,) = rig.proxy._exchanges
    assert exchange.transcript is None
    reply = await running
    assert (reply.text, rig.calls) == ("one", [1, 0])
    assert "error" in json.loads(reply.events[-1])


@pytest.mark.parametrize(
    "other", [failing(400), failing(500), failing(503), failing(200, {"choices": []})]
)
async def test_an_engine_that_cannot_write_on_leaves_an_error_event(rig: Rig, other: Any) -> None:
    """No second head in the middle of a stream; a 4xx is not tried a third time."""
    await started(rig, breaking("one"), other, max_retries=1)
    reply = await rig.ask(STREAM)
    assert reply.text == "one"
    assert "error" in json.loads(reply.events[-1])
    assert b"HTTP/1.1" not in reply.body
    assert rig.calls == [1, 1]


async def test_a_busy_engine_is_passed_over(rig: Rig) -> None:
    """503 on the way: the third one writes on."""
    others = in_turn(failing(503), going_on)
    await started(rig, breaking("one"), others, others)
    assert (await rig.ask(STREAM)).text == "one two three four five"
    assert rig.calls == [1, 1, 1]


async def test_without_another_replica_a_break_may_be_mended_but_a_stall_is_the_end(
    rig: Rig,
) -> None:
    """The only replica is asked again as retries ask it."""

    async def twice(call: Call) -> None:
        await (breaking("one") if call.number == 0 else going_on)(call)

    await started(rig, twice)
    assert (await rig.ask(STREAM)).text == "one two three four five"
    rig.configure(broken_stream="continue", stall_limit_s=0.2)
    rig.engines[0].script = breaking("one", how="stall")
    reply = await rig.ask(STREAM)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_too_slow"
    assert rig.calls == [3]


async def test_engines_that_are_not_known_to_write_on_are_not_asked(rig: Rig) -> None:
    """A chat goes on only where the engine's way of doing so is known."""
    await started(rig, breaking("one", how="stall"), going_on, stall_limit_s=0.2)
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1, engine="openai"))
    rig.fleet.pools["p"].cursor = -1
    reply = await rig.ask(STREAM)
    assert (reply.text, rig.calls) == ("one", [1, 0])
    assert "error" in json.loads(reply.events[-1])


async def test_a_client_that_leaves_between_two_engines_leaves_nothing(rig: Rig) -> None:
    """The pause before the next attempt ends with its client."""
    await started(rig, breaking("one"), going_on, retry_backoff_s=5.0)
    client = await RawClient.open(rig.port)
    client.post(STREAM)
    await client.head()
    await client.chunk()
    await until(lambda: rig.replica(0).errors_total)
    client.reset()
    await until(lambda: rig.records)
    assert rig.records[0].status == 499
    assert rig.calls == [1, 0]


async def test_a_full_pool_lets_a_broken_stream_wait_its_turn(rig: Rig) -> None:
    """And if that takes too long, it ends with an event, not with a second head."""
    hold = asyncio.Event()

    async def held(call: Call) -> None:
        if call.json()["messages"][0]["content"] == "other":
            await hold.wait()
        await going_on(call)

    await started(rig, breaking("one", how="stall"), held, max_concurrency_per_replica=1,
                  stall_limit_s=0.2, queue_deadline_s=0.3)  # fmt: skip
    rig.fleet.pools["p"].cursor = 0
    other = asyncio.create_task(rig.ask(chat(messages=[{"role": "user", "content": "other"}])))
    await rig.engines[1].called()
    reply = await rig.ask(STREAM)
    hold.set()
    await other
    assert reply.text == "one"
    assert json.loads(reply.events[-1])["error"]["code"] == "queue_timeout"


async def test_a_broken_stream_never_falls_back_to_another_model(rig: Rig) -> None:
    """The fallback pool may serve other weights: its text would not fit."""
    await rig.start(breaking("one", how="stall"), going_on)
    first = replace(
        rig.table.pools[0],
        overload="fallback",
        fallback_pool="q",
        endpoints=(rig.endpoint(0),),
        settings=wire.PoolSettings(broken_stream="continue", stall_limit_s=0.2),
    )
    spare = wire.Pool(
        name="q", model="m", version="2", overload="reject", endpoints=(rig.endpoint(1),)
    )
    rig.apply(pools=(first, spare))
    reply = await rig.ask(STREAM)
    assert (reply.text, rig.calls) == ("one", [1, 0])
    assert "error" in json.loads(reply.events[-1])


async def test_a_stream_leaves_a_removed_replica_at_its_drain_limit_unbroken(rig: Rig) -> None:
    """R53: with continuation not even the limit ends it; the replica did nothing wrong."""
    await started(rig, breaking("one", how="stall"), going_on, drain_limit_s=0.3)
    running = asyncio.create_task(rig.ask(STREAM))
    await rig.engines[0].called()
    gone = rig.replica(0)
    await until(lambda: gone.last_token_at is not None)
    rig.set_endpoints(rig.endpoint(1))
    assert (await running).text == "one two three four five"
    assert gone.errors_total == 0


async def test_a_client_that_is_full_stays_in_charge_over_the_seam(rig: Rig) -> None:
    """Back-pressure holds for the second engine as for the first."""
    comment = b": " + b"x" * 50_000 + b"\n\n"

    async def flooding(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("one"))
        while not call.peer_closed.is_set():
            await call.chunk(comment)

    await started(rig, flooding, going_on)
    client = await RawClient.open(rig.port)
    client.writer.transport.pause_reading()
    client.post(chat(stream=True))
    await until(lambda: rig.proxy._exchanges and next(iter(rig.proxy._exchanges))._client_is_full)
    (exchange,) = rig.proxy._exchanges
    exchange.attempt_failed(Failed("broken", "while nobody reads, a reset goes unseen"))
    await rig.engines[1].called()
    assert exchange.attempt.connection._is_paused
    client.reset()
    await until(lambda: rig.records)


# -- the transcript alone --------------------------------------------------------------------------


def test_a_long_text_is_read_in_batches_and_a_huge_one_is_given_up() -> None:
    """Little is put aside, whatever the length."""
    transcript = Transcript("/v1/chat/completions")
    for _ in range(3 * BATCH_BYTES // len(event("word"))):
        transcript.through(event("word"))
        assert transcript._aside_bytes <= BATCH_BYTES
    transcript.broke(None)
    text = transcript.text_to_continue()
    assert (text, transcript.earlier_tokens) == ("word" * (len(text) // 4), len(text) // 4)
    huge = Transcript("/v1/chat/completions")
    for _ in range(TEXT_LIMIT_BYTES // BATCH_BYTES + 1):
        huge.through(event("x" * BATCH_BYTES))
    huge.broke(None)
    assert huge.fault


# -- the simulated engine ------------------------------------------------------------------------


@pytest.fixture
async def simulated(rig: Rig) -> AsyncIterator[list[EngineServer]]:
    """Two simulated engines in place of scripted ones; they say the same to the same prompt."""
    profile = with_changes(A100_QWEN_7B.faster(20))
    servers = []
    for _ in range(2):
        limits = Limits(
            model="m", longest_request_tokens=profile.longest_request_tokens, answer_tokens=120
        )
        server = EngineServer(profile, limits)
        await server.start()
        servers.append(server)
    await rig.start()
    rig.configure(broken_stream="continue", policy="round_robin")
    rig.set_endpoints(
        *(wire.Endpoint(replica=f"r{i}", url=f"http://127.0.0.1:{s.port}")
          for i, s in enumerate(servers))
    )  # fmt: skip
    yield servers
    for server in servers:
        await server.stop(0)


@pytest.mark.parametrize("after", [1, 7, 40])
@pytest.mark.parametrize("asks", [True, False])
async def test_engines_that_break_change_not_one_character(
    rig: Rig, simulated: list[EngineServer], after: int, asks: bool
) -> None:
    """The same text, usage and end as without the break."""
    body = chat(stream=True, max_tokens=60, temperature=0)
    if asks:
        body["stream_options"] = {"include_usage": True}
    whole = await rig.ask(body)
    for server in simulated:
        server.engine.switch(Faults(crash=Crash(how="reset", after_tokens=after, ratio=0.5)))
    broken = [await rig.ask(body) for _ in range(4)]
    assert sum(record.attempts > 1 for record in rig.records) >= 1
    assert {reply.text for reply in broken} == {whole.text}
    ends = {json.loads(reply.events[-3 if asks else -2])["choices"][0]["finish_reason"]
            for reply in (whole, *broken)}  # fmt: skip
    assert len(ends) == 1
    assert len({record.output_tokens for record in rig.records}) == 1
    assert len({record.prompt_tokens for record in rig.records}) <= 3
