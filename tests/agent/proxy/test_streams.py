"""Relaying event streams."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import DONE, Call, completion, event, hanging, obliging, usage_event

STREAM = chat(stream=True)
ASKING = chat(stream=True, stream_options={"include_usage": True})
WORDS = "北京🙂é"


async def test_characters_cut_by_writes_arrive_whole(rig: Rig) -> None:
    """R01: one byte a write, and chunk borders inside characters."""
    whole = event(WORDS)

    async def byte_by_byte(call: Call) -> None:
        await call.head(200, "text/event-stream")
        for byte in b"%x\r\n%b\r\n" % (len(whole), whole):
            await call.send(bytes([byte]))
            await call.pause(0.001)
        await call.chunk(usage_event(11, 7))
        await call.chunk(DONE)
        await call.end()

    await rig.start(byte_by_byte)
    reply = await rig.ask(ASKING)
    assert reply.text == WORDS
    assert "�" not in reply.body.decode()
    assert (rig.records[0].prompt_tokens, rig.records[0].output_tokens) == (11, 7)


@pytest.mark.parametrize("character", ["京", "🙂"])
async def test_a_chunk_border_inside_a_character_does_no_harm(rig: Rig, character: str) -> None:
    """R01: chunk borders inside a 3-byte and a 4-byte character."""
    whole = event(WORDS)
    cut = whole.index(character.encode()) + 1

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(whole[:cut])
        await call.pause(0.02)
        await call.chunk(whole[cut:])
        await call.chunk(usage_event(11, 7))
        await call.chunk(DONE)
        await call.end()

    await rig.start(script)
    reply = await rig.ask(ASKING)
    assert reply.text == WORDS
    assert (rig.records[0].prompt_tokens, rig.records[0].output_tokens) == (11, 7)


TOKENS = (event("a"), event("b"), event("c"), usage_event(11, 7))
TWO_LINES = event("c").replace(b'"choices":', b'\ndata: "choices":')
FRAMINGS = {
    "no space": [t.replace(b"data: ", b"data:") for t in (*TOKENS, DONE)],
    "crlf": [t.replace(b"\n", b"\r\n") for t in (*TOKENS, DONE)],
    "cr": [t.replace(b"\n", b"\r") for t in (*TOKENS, DONE)],
    "crlf cut": [piece for t in (*TOKENS, DONE) for piece in (t[:-2] + b"\r\n\r", b"\n")],
    "two data lines": [TOKENS[0], TOKENS[1], TWO_LINES, TOKENS[3], DONE],
    "no blank line at the end": [*TOKENS, DONE.rstrip()],
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("client_asked", [True, False])
async def test_every_legal_framing_is_understood(
    rig: Rig, framing: str, client_asked: bool
) -> None:
    """R02: usage and exactly one TTFT sample, whatever the line ends."""
    pieces = FRAMINGS[framing]

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        for piece in pieces:
            await call.chunk(piece)
            await call.pause(0.002)
        await call.end()

    await rig.start(script)
    reply = await rig.ask(ASKING if client_asked else STREAM)
    assert reply.text == "abc"
    record = rig.records[0]
    assert (record.status, record.prompt_tokens, record.output_tokens) == (200, 11, 7)
    assert record.ttft_s is not None
    (pool,), _ = rig.metrics.take_deltas()
    assert sum(pool.ttft.values()) == 1


async def test_odd_chunks_pass_unchanged_and_usage_counts_once(rig: Rig) -> None:
    """R03: empty, null and missing choices, null content, tool calls, null usage."""
    chunks = [
        {"choices": []},
        {"choices": [{"delta": {"content": None}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "type": "function"}]}}]},
        {"object": "chat.completion.chunk"},
        {"choices": [{"delta": {"content": "x"}}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ]
    events = [b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks] + [DONE]

    async def script(call: Call) -> None:
        await call.stream(*events)

    await rig.start(script)
    reply = await rig.ask(ASKING)
    assert reply.body == b"".join(events)
    assert rig.metrics.take_deltas()[0][0].output_tokens == 4
    assert rig.records[0].status == 200


async def test_a_stream_that_breaks_is_not_replayed(rig: Rig) -> None:
    """R04: what was delivered, then an explicit error, and no success marker."""

    async def breaking(call: Call) -> None:
        await call.head(200, "text/event-stream")
        for word in ("one", " two", " three"):
            await call.chunk(event(word))
        await call.pause(0.05)
        call.reset()

    await rig.start(breaking, obliging())
    rig.set_endpoints(rig.endpoint(0), rig.endpoint(1, state="warming"))
    reply = await rig.ask(STREAM)
    *tokens, last = reply.events
    assert [json.loads(t)["choices"][0]["delta"]["content"] for t in tokens] == [
        "one",
        " two",
        " three",
    ]
    assert json.loads(last)["error"]["code"] == "engine_failed"
    assert not reply.is_cut
    assert rig.calls == [1, 0]
    assert rig.replica().errors_total == 1
    assert rig.records[0].status == 502


async def test_an_error_event_is_a_failure_even_before_done(rig: Rig) -> None:
    """R04: vLLM ends a broken stream with an error event and then [DONE]."""
    error = b'data: {"error": {"message": "engine died", "type": "x", "code": 500}}\n\n'

    async def script(call: Call) -> None:
        await call.stream(event("one"), error, DONE, gap_s=0.01)

    await rig.start(script)
    reply = await rig.ask(STREAM)
    assert json.loads(reply.events[-1])["error"]["message"] == "engine died"
    assert "[DONE]" not in reply.events
    assert rig.records[0].status == 502
    assert rig.replica().errors_total == 1


async def test_a_stream_without_finish_and_done_is_a_failure(rig: Rig) -> None:
    """R04: an end without a proof of success is reported as one."""

    async def script(call: Call) -> None:
        await call.stream(event("one"))

    await rig.start(script)
    reply = await rig.ask(STREAM)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"


async def test_a_finish_reason_is_an_end_without_done(rig: Rig) -> None:
    """R02: transformers never sends [DONE]; usage rides in its last chunk."""
    usage = {"prompt_tokens": 6, "completion_tokens": 16}

    async def script(call: Call) -> None:
        await call.stream(event("one"), event(finish="length", usage=usage))

    await rig.start(script)
    reply = await rig.ask(STREAM)
    assert reply.text == "one"
    assert (rig.records[0].status, rig.records[0].output_tokens) == (200, 16)


async def test_events_are_passed_on_as_they_arrive(rig: Rig) -> None:
    """R06: each event is there before the next is sent; no compression, no length."""
    got = asyncio.Event()

    async def script(call: Call) -> None:
        assert call.header("accept-encoding") is None
        await call.head(200, "text/event-stream")
        for i in range(5):
            await call.chunk(event(f"{i}"))
            async with asyncio.timeout(5):
                await got.wait()
            got.clear()
        await call.chunk(DONE)
        await call.end()

    await rig.start(script)
    client = await RawClient.open(rig.port)
    client.post(STREAM, accept_encoding="gzip")
    _, headers = await client.head()
    assert headers["content-type"] == "text/event-stream"
    assert "content-length" not in headers
    for i in range(5):
        assert await client.chunk() == event(f"{i}")
        got.set()
    client.close()


async def test_a_long_stream_lives_while_tokens_come(rig: Rig) -> None:
    """R07: total time is far above both limits, each gap is below."""
    await rig.start(obliging(["x"] * 12, gap_s=0.1))
    rig.configure(ttft_limit_s=0.5, stall_limit_s=0.5)
    reply = await rig.ask(STREAM)
    assert reply.events[-1] == "[DONE]"
    assert rig.records[0].e2e_s > 1.0


async def test_a_stalled_stream_ends_with_an_error(rig: Rig) -> None:
    """R07: two tokens, then silence."""

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await call.chunk(event("b"))
        await call.peer_closed.wait()

    await rig.start(script)
    rig.configure(ttft_limit_s=30, stall_limit_s=0.3)
    reply = await rig.ask(STREAM)
    assert reply.text == "ab"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_too_slow"
    await until(lambda: rig.engines[0].calls[0].peer_closed.is_set())
    assert rig.records[0].status == 504


async def test_a_stream_that_stalls_after_its_final_event_has_lost_nothing(rig: Rig) -> None:
    """R07: the final event waits for a usage event that never comes."""

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await call.chunk(event("b", finish="stop"))
        await call.peer_closed.wait()

    await rig.start(script)
    rig.configure(ttft_limit_s=30, stall_limit_s=0.3)
    reply = await rig.ask(STREAM)
    assert reply.text == "ab"
    assert json.loads(reply.events[-2])["choices"][0]["finish_reason"] == "stop"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_too_slow"


async def test_no_first_token_in_time_is_a_504(rig: Rig) -> None:
    """R07: the TTFT limit acts apart from the stall limit, and is not retried."""
    await rig.start(hanging, hanging)
    rig.configure(ttft_limit_s=0.2, stall_limit_s=30)
    reply = await rig.ask(STREAM)
    assert (reply.status, reply.error["code"]) == (504, "engine_too_slow")
    assert sum(rig.calls) == 1


async def test_a_plain_request_may_take_as_long_as_its_tokens_need(rig: Rig) -> None:
    """R07: a plain answer shows nothing before its last token."""

    async def slow(call: Call) -> None:
        await call.pause(0.6)
        await call.answer(200, completion())

    await rig.start(slow)
    rig.configure(ttft_limit_s=0.2)
    reply = await rig.ask(chat(max_tokens=100))
    assert reply.status == 200


async def test_the_end_to_end_limit_ends_everything(rig: Rig) -> None:
    """R07: the one hard limit."""
    await rig.start(hanging)
    rig.configure(end_to_end_limit_s=0.2)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (504, "engine_too_slow")


@pytest.mark.parametrize("client_asked", [True, False])
async def test_usage_is_recorded_whether_or_not_the_client_asked(
    rig: Rig, client_asked: bool
) -> None:
    """R10: the client that did not ask gets no usage-only chunk."""
    await rig.start(obliging())
    reply = await rig.ask(ASKING if client_asked else STREAM)
    assert reply.text == "one two three"
    assert reply.events[-1] == "[DONE]"
    usages = [e for e in reply.events if '"usage"' in e]
    assert len(usages) == client_asked
    record = rig.records[0]
    assert (record.prompt_tokens, record.output_tokens, record.estimated) == (11, 3, False)


async def test_a_stream_without_usage_is_estimated_and_marked(rig: Rig) -> None:
    """R10: an engine that tells nothing is counted by events."""

    async def script(call: Call) -> None:
        await call.stream(event("a"), event("b"), event(finish="stop"), DONE)

    await rig.start(script)
    await rig.ask(STREAM)
    record = rig.records[0]
    assert record.estimated
    assert record.output_tokens == 3
    assert record.prompt_tokens > 0


async def test_a_slow_reader_slows_the_engine_and_costs_bounded_memory(rig: Rig) -> None:
    """Back-pressure: what the client does not read, the engine cannot send."""
    sent, most = 0, 1000  # 60 MB; the kernel may hold up to 20 of them on the way
    big = event("x" * 60_000)

    async def script(call: Call) -> None:
        nonlocal sent
        await call.head(200, "text/event-stream")
        while not call.peer_closed.is_set() and sent < most:
            await call.chunk(big)
            sent += 1
            while call.connection.transport.get_write_buffer_size() > 0:
                if call.peer_closed.is_set():
                    return
                await call.pause(0.01)
        await call.chunk(DONE)
        await call.end()

    await rig.start(script)
    client = await RawClient.open(rig.port)
    client.writer.transport.pause_reading()
    client.post(STREAM)
    await until(lambda: sent > 0)
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < most
    most = sent
    client.writer.transport.resume_reading()
    reply = await client.reply()
    assert len(reply.events) == sent + 1
    client.close()


async def test_a_slow_reader_is_held_to_the_end_to_end_limit_too(rig: Rig) -> None:
    """It cannot hold an engine for ever; what was sent reaches it, and a typed error after it."""
    big = event("x" * 60_000)

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream")
        while not call.peer_closed.is_set():
            await call.chunk(big)
            while call.connection.transport.get_write_buffer_size() > 0:
                if call.peer_closed.is_set():
                    return
                await call.pause(0.01)

    await rig.start(script)
    rig.configure(end_to_end_limit_s=1.5)
    client = await RawClient.open(rig.port)
    client.writer.transport.pause_reading()
    client.post(STREAM)
    await until(lambda: rig.replica().inflight_requests == 1)
    await until(lambda: rig.replica().inflight_requests == 0)
    assert rig.records[-1].error == "request_timeout"
    assert rig.replica().breaker.state == "closed"
    assert rig.replica().errors_total == 0
    client.writer.transport.resume_reading()
    reply = await client.reply()
    assert b'"request_timeout"' in reply.body[-400:]
    client.close()


async def test_comments_reach_the_client_in_place(rig: Rig) -> None:
    """R02: a comment line is no event, and no proof of an answer."""

    async def script(call: Call) -> None:
        await call.stream(b": ping\n\n", event("a"), b": ping\n\n", DONE, gap_s=0.01)

    await rig.start(script)
    reply = await rig.ask(STREAM)
    assert reply.body == b": ping\n\n" + event("a") + b": ping\n\n" + DONE
