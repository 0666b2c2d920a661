"""Tokens that go to the client as they came, in the engine's own chunks, past the parser."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.proxy.chunks import only_chunk
from routing_agent.proxy.ingress import ClientConnection
from routing_agent.proxy.server import Proxy
from routing_agent.proxy.stream import EventReader
from routing_agent.proxy.upstream import EngineConnection
from tests.fakes.engine import DONE, event, usage_event
from tests.fuzz.targets import Wire

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
).encode()
ASKED = (
    b"POST /v1/chat/completions HTTP/%b\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class Pieces(Wire):
    """Keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        super().write(data)
        self.writes.append(bytes(data))


class Relay:
    """A proxy before one engine, fed from memory."""

    def __init__(self) -> None:
        endpoint = wire.Endpoint(replica="r", url="http://127.0.0.1:1")
        pool = wire.Pool(
            name="p",
            model="m",
            version="1",
            overload="reject",
            endpoints=(endpoint,),
            settings=wire.PoolSettings(slow_start_s=0),
        )
        table = wire.RoutingTable(
            lineage="l",
            epoch=1,
            fleet_revision=0,
            open_access=True,
            models=(wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),)),),
            pools=(pool,),
        )
        fleet = Fleet()
        now = time.monotonic()
        fleet.apply(table, now=now, wall=time.time())
        self.replica = fleet.replicas["r"]
        self.replica.note_probe(True, "", now)
        self.records: list[FinishedRequest] = []
        self.proxy = Proxy(fleet, Metrics(), on_finished=self.records.append)
        self.proxy.loop = asyncio.new_event_loop()

    def stream(self, reads: list[bytes], *, version: bytes = b"1.1") -> list[bytes]:
        """Give what a client is written when an engine's answer comes in these reads."""
        link = self.proxy.link(self.replica)
        engine, client = EngineConnection(link), ClientConnection(self.proxy)
        engine.connection_made(Wire())
        link.idle.append(engine)
        told = Pieces()
        client.connection_made(told)
        client.data_received(ASKED % (version, len(BODY), BODY))
        for data in reads:
            engine.data_received(data)
        assert engine.passing is None  # an idle connection holds nobody
        client.connection_lost(None)
        engine.connection_lost(None)
        return told.writes


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    made = Relay()
    yield made
    made.proxy.loop.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def body_of(writes: list[bytes]) -> bytes:
    """Take a chunked answer apart, as strictly as the framing is defined."""
    _, _, rest = b"".join(writes).partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        assert re.fullmatch(rb"[0-9a-f]+", size)
        length = int(size, 16)
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
        if not length:
            assert rest == b""
            return body


def test_a_token_a_read_passes_in_the_engines_own_chunk(relay: Relay) -> None:
    tokens = [chunk(event(word)) for word in ("a", " long", "", "er", "京", "x" * 300, "\n")]
    end = chunk(event(finish="stop")) + chunk(usage_event(3, 6)) + chunk(DONE) + LAST
    writes = relay.stream([HEAD + tokens[0], *tokens[1:], end])
    assert writes[1 : len(tokens) - 1] == tokens[1:-1]
    assert body_of(writes) == b"".join(
        [body_of([HEAD, *tokens, LAST]), event(finish="stop"), usage_event(3, 6), DONE]
    )
    assert relay.records[-1].output_tokens == 6


PIECES = st.one_of(
    st.text(max_size=9).map(event),
    st.sampled_from(["a", "bc", " d", "0\r\n\r\n", '"', "\\"]).map(event),
    st.just(b": ping\n\n"),
    st.just(event("logged", logprobs={"content": []})),
    st.just(event("t").replace(b"\n", b"\r\n")),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(PIECES, min_size=1, max_size=3).map(b"".join), max_size=8),
    st.one_of(st.none(), st.lists(st.integers(0, 3000), max_size=12)),
    st.sampled_from([chunk, lambda data: b"%X;a=b\r\n%b\r\n" % (len(data), data)]),
)
def test_any_chunks_in_any_reads_reach_the_client_whole_and_counted(
    relay: Relay, groups: list[bytes], cuts: list[int] | None, framed: Any
) -> None:
    """`None` of cuts: a read for each chunk."""
    groups = [event("first"), *groups, event(finish="length") + DONE]
    parts = [HEAD, *(framed(group) for group in groups), LAST]
    if cuts is not None:
        whole = b"".join(parts)
        edges = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
        parts = [whole[a:b] for a, b in pairwise(edges)]
    writes = relay.stream(parts)
    expected = b"".join(groups)
    assert body_of(writes) == expected
    reader = EventReader(strip_usage=False)
    reader.feed(expected)
    record = relay.records[-1]
    assert (record.status, record.output_tokens) == (200, reader.events)


def test_a_client_without_chunks_gets_none(relay: Relay) -> None:
    tokens = [chunk(event(word)) for word in "abc"]
    end = chunk(event(finish="stop") + DONE) + LAST
    writes = relay.stream([HEAD + tokens[0], *tokens[1:], end], version=b"1.0")
    head, _, body = b"".join(writes).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"".join([*map(event, "abc"), event(finish="stop"), DONE])


def test_an_error_a_break_and_an_end_are_seen_behind_tokens_that_passed(relay: Relay) -> None:
    tokens = [chunk(event(word)) for word in "abc"]
    start = [HEAD + tokens[0], *tokens[1:]]
    fault = b'data: {"error":{"message":"x","code":500}}\n\n'
    body = body_of(relay.stream([*start, chunk(fault)]))
    assert body == b"".join([*map(event, "abc"), fault])
    assert relay.records[-1].status == 502
    relay.stream([*start, b"zz\r\n"])  # no longer HTTP
    assert (relay.records[-1].status, relay.records[-1].output_tokens) == (502, 3)
    relay.stream([*start, LAST])  # ended without a finish reason
    assert relay.records[-1].status == 502


@pytest.mark.parametrize(
    "data",
    [b"", b"\r\n", b"0\r\n\r\n", b"1\r\n\r\n", b"1\r\nab\r\n", b"2\r\nab\r\n3\r\nabc\r\n",
     b"02\r\nab\r\n", b"A\r\n0123456789\r\n", b"2;x\r\nab\r\n", b"2\r\nab\r",
     b"2000\r\n" + b"x" * 8192 + b"\r\n"],
)  # fmt: skip
def test_what_is_not_one_plain_chunk_is_none(data: bytes) -> None:
    assert only_chunk(data) == b""


@given(st.binary(min_size=1, max_size=600))
def test_what_is_in_one_chunk_is_found(data: bytes) -> None:
    assert only_chunk(chunk(data)) == data
    assert only_chunk(chunk(data) + chunk(data)) == b""
