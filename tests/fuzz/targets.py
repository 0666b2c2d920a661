"""What is fuzzed, and what must hold whatever comes in: each target takes any bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

import httptools
import msgspec

from routing_agent import wire
from routing_agent.control.tables import BadTable, read_table
from routing_agent.core.fleet import Fleet
from routing_agent.core.paths import FORWARDED, extra_path_fault
from routing_agent.engine.base import NotMetrics
from routing_agent.engine.drivers import driver_for
from routing_agent.metrics import Metrics
from routing_agent.proxy import continuation
from routing_agent.proxy.answer import answer_for
from routing_agent.proxy.ingress import ClientConnection
from routing_agent.proxy.request import ParsedRequest, RequestRefused, parse
from routing_agent.proxy.server import Proxy
from routing_agent.proxy.splice import rewrite, without
from routing_agent.proxy.stream import EventReader, StreamError
from routing_agent.proxy.transcript import Transcript
from routing_agent.proxy.upstream import EngineConnection

CHAT: Final = "/v1/chat/completions"
_ENGINES: Final[tuple[wire.EngineName, ...]] = ("vllm", "sglang", "llamacpp", "tgi", "triton")


def request_body(data: bytes) -> None:
    """Any body is read or refused; a rewrite changes the two fields and nothing else."""
    request = _parsed(data)
    if request is None:
        return
    assert request.prompt_bytes >= 0
    before = json.loads(data)
    after = json.loads(rewrite(data, model="模型", ask_usage=True))
    assert after.pop("model") == "模型"
    before.pop("model")
    options = after.pop("stream_options")
    assert options["include_usage"] is True
    before.pop("stream_options", None)
    assert _same(after, before)
    _continued(data, before)
    left = json.loads(without(data, "lora"))
    assert "lora" not in left
    assert _same(left, {k: v for k, v in json.loads(data).items() if k != "lora"})


def _parsed(data: bytes) -> ParsedRequest | None:
    try:
        return parse(data, CHAT)
    except RequestRefused as refused:
        status = refused.answer.status
    assert 400 <= status < 500
    return None


def _continued(body: bytes, before: dict[str, Any]) -> None:
    """A request that may be continued becomes one with one message more."""
    transcript = Transcript(CHAT)
    transcript.through(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi \\""}}]}\n\n')
    transcript.broke(None)
    if continuation.fault_of(body, transcript):
        return
    after = json.loads(continuation.extended(body, transcript, "vllm"))
    assert after["messages"][-1] == {"role": "assistant", "content": 'hi "'}
    assert _same(after["messages"][:-1], before["messages"])
    assert (after["continue_final_message"], after["add_generation_prompt"]) == (True, False)


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)  # tells 1 from 1.0 and true, and NaN equals itself


def events(data: bytes) -> None:
    """However a stream is cut, the same events pass, and a text is heard once."""
    size = data[0] % 7 + 1 if data else 1
    strip = bool(data and data[0] & 128)
    stream = data[1:]
    whole = _read([stream], strip=strip)
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert _read(pieces, strip=strip)[:3] == whole[:3]


def _read(pieces: list[bytes], *, strip: bool) -> tuple[Any, ...]:
    reader = EventReader(strip_usage=strip)
    transcript = Transcript(CHAT)
    transcript.is_continuing = True
    out = b""
    try:
        for piece in pieces:
            passed = reader.feed(piece)
            transcript.through(passed)
            out += passed
        rest = reader.end()
        transcript.through(rest)
    except StreamError:
        return ("refused",)
    transcript.broke(reader.usage)
    assert transcript.earlier_tokens >= 0 or reader.usage is not None
    # A line end that a cut parts from an error event goes with the event.
    return (
        (out + rest).rstrip(b"\r\n"),
        reader.is_complete,
        reader.error,
        transcript.text_to_continue(),
    )


class Wire(asyncio.Transport):
    """A transport in memory: what was written, and whether it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None:
        pass


def _idle_proxy() -> Proxy:
    """Give a proxy whose one pool has no replica: everything is answered at once."""
    pool = wire.Pool(name="p", model="m", version="1", overload="reject")
    table = wire.RoutingTable(
        lineage="l",
        epoch=1,
        fleet_revision=0,
        open_access=True,
        models=(wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="p"),)),),
        pools=(pool,),
    )
    fleet = Fleet()
    fleet.apply(table, now=time.monotonic(), wall=time.time())
    proxy = Proxy(fleet, Metrics())
    proxy.loop = asyncio.new_event_loop()
    return proxy


class Answers:
    """Reads what a client would read."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.statuses.append(self.parser.get_status_code())


PROXY: Final = _idle_proxy()


def client_http(data: bytes) -> None:
    """Whatever a client sends, it gets HTTP back, never a 500, and nothing is kept for it."""
    cut = data[0] if data else 0
    client, transport = ClientConnection(PROXY), Wire()
    client.connection_made(transport)
    for piece in (data[1 : 1 + cut], data[1 + cut :]):
        if piece and not transport.closed:
            client.data_received(piece)
    sent = bytes(transport.sent)
    client.deadline_passed()
    client.connection_lost(None)
    assert not PROXY.clients
    assert PROXY.running_requests == 0
    assert not sent or sent.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500 " not in sent
    assert len(client._backlog) == 0 or transport.closed


class Client:
    """Takes an answer and checks the order of its parts."""

    def __init__(self) -> None:
        self.state = "none"

    def respond(self, status: int, header_lines: bytes, body: bytes) -> None:
        assert self.state == "none"
        assert b"\r\n\r\n" not in header_lines
        self.state = "ended"

    def begin(self, status: int, header_lines: bytes, *, length: int | None, data: bytes) -> None:
        assert self.state == "none"
        assert b"\r\n\r\n" not in header_lines
        self.state = "begun"

    def send(self, data: bytes) -> None:
        assert self.state == "begun"
        assert data

    def end(self, data: bytes) -> None:
        assert self.state == "begun"
        self.state = "ended"


class Link:
    """The part of a link that a connection needs."""

    def __init__(self) -> None:
        self.open: set[EngineConnection] = set()
        self.idle: list[EngineConnection] = []

    def forget(self, connection: EngineConnection) -> None:
        self.open.discard(connection)


class Caller:
    """Relays one engine's answer as an attempt does."""

    def __init__(self) -> None:
        self.client = Client()
        self.answer: Any = None
        self.ends = 0

    def connected(self, connection: EngineConnection) -> None:
        """Not used: the connection is there."""

    def connect_failed(self, reason: str, *, is_own_fault: bool) -> None:
        """Not used either."""

    def arrived(self, connection: EngineConnection) -> None:
        if self.ends:
            return
        if self.answer is None:
            transcript = Transcript(CHAT)
            self.answer = answer_for(
                connection, self.client, b"x: y\r\n", strip_usage=True, transcript=transcript
            )
        failed = self.answer.arrived(connection)
        if failed is not None:
            self.ends += 1
            connection.abort()
        elif connection.is_complete:
            self.ends += 1
            assert self.client.state == "ended"
            connection.release(0.0)

    def lost(self, connection: EngineConnection, reason: str) -> None:
        assert self.ends == 0
        assert reason
        self.ends += 1


def engine_http(data: bytes) -> None:
    """Whatever an engine sends, its answer ends once, well or with a reason."""
    cut = data[0] if data else 0
    link: Any = Link()
    connection, transport, caller = EngineConnection(link), Wire(), Caller()
    connection.connection_made(transport)
    connection.send(caller, b"POST / HTTP/1.1\r\n\r\n", b"")
    for piece in (data[1 : 1 + cut], data[1 + cut :]):
        if piece and not transport.closed:
            connection.data_received(piece)
    connection.connection_lost(None)
    assert caller.ends == 1 or connection.receiver is None
    assert not link.open


def metrics_page(data: bytes) -> None:
    """Any text is figures that are finite, or no metrics."""
    text = data.decode("utf-8", "replace")
    for engine in _ENGINES:
        try:
            load = driver_for(engine).read_load(text)
        except NotMetrics:
            continue
        for name in ("running", "waiting", "kv_usage", "prompt_tokens_total"):
            value = getattr(load, name)
            assert value is None or 0 <= value < float("inf"), (engine, name)


def path(data: bytes) -> None:
    """No spelling but the exact one is a path of an engine."""
    from routing_agent.proxy import incoming, local

    found = incoming.path_of(data)
    if local.allowed_methods(found, ()) == ("POST", "OPTIONS"):
        assert found in FORWARDED
        assert data.partition(b"?")[0].decode() in FORWARDED
    text = data.decode("utf-8", "replace")
    if not extra_path_fault(text):
        assert not any(word in text.lower() for word in ("lora", "sleep", "abort", "%", "..", "//"))


def table(data: bytes) -> None:
    """Any table is refused with a reason, or can be put in place."""
    try:
        found = read_table(data)
    except BadTable as refused:
        reason = str(refused)
        found = None
    if found is None:
        assert reason
        return
    fleet = Fleet()
    fleet.apply(found, now=1.0, wall=1.0)
    fleet.apply(found, now=2.0, wall=2.0)
    msgspec.json.encode(wire.redacted(found))


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "request_body": request_body,
    "events": events,
    "client_http": client_http,
    "engine_http": engine_http,
    "metrics_page": metrics_page,
    "path": path,
    "table": table,
}
