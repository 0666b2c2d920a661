"""A scripted engine on a real socket: exact bytes, pauses, chunk boundaries, FIN or RST at will.

    engine = await FakeEngine.start(script)
    async def script(call):                 # one coroutine per request
        await call.head(200, "text/event-stream")
        await call.chunk(b'data: {"choices":[...]}\\n\\n')
        call.reset()

`engine.calls` logs every request: raw bytes, body, arrival, and when its peer closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request as the engine saw it, and the means to answer it."""

    connection: _Connection
    raw: bytes
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    number: int
    arrived_at: float
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float | None = None

    def header(self, name: str) -> str | None:
        """Give a header's value, or `None`."""
        values = [v for n, v in self.headers if n.lower() == name]
        assert len(values) < 2, f"{name} sent more than once"
        return values[0] if values else None

    def json(self) -> Any:
        """Give the decoded body."""
        return json.loads(self.body)

    async def send(self, data: bytes) -> None:
        """Send exactly these bytes now."""
        self.connection.write(data)
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        """Do nothing for a while, as a slow engine does."""
        await asyncio.sleep(seconds)

    async def head(
        self, status: int, content_type: str, *lines: str, length: int | None = None
    ) -> None:
        """Send a response head, chunked unless a length is given."""
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        head = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", framing, *lines]
        await self.send(("\r\n".join(head) + "\r\n\r\n").encode())

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def stream_rest(self, *events: bytes) -> None:
        """Send the last events of a begun stream."""
        for one in events:
            await self.chunk(one)
        await self.end()

    async def end(self) -> None:
        """Send the last chunk."""
        await self.send(b"0\r\n\r\n")

    async def answer(self, status: int, value: Any, *lines: str) -> None:
        """Send a whole JSON answer."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.head(status, "application/json", *lines, length=len(body))
        await self.send(body)

    async def stream(self, *events: bytes, gap_s: float = 0.0) -> None:
        """Send a whole event stream, one chunk an event."""
        await self.head(200, "text/event-stream")
        for event in events:
            await self.chunk(event)
            await asyncio.sleep(gap_s)
        await self.end()

    def close(self) -> None:
        """Close with a FIN."""
        self.connection.close()

    def reset(self) -> None:
        """Close with an RST."""
        self.connection.reset()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.buffer = b""
        self.call: Call | None = None
        self.is_closed = False
        self.served = 0
        self.task: asyncio.Task[None] | None = None
        self.idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.engine.connections.append(self)
        self._rest()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.engine.bytes_received += len(data)
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self._try()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self.call is not None:
            self.call.closed_at = asyncio.get_running_loop().time()
            self.call.peer_closed.set()
        if self.idle_timer is not None:
            self.idle_timer.cancel()

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _try(self) -> None:
        if self.task is not None and not self.task.done():
            return
        parsed = _parse(self.buffer)
        if parsed is None:
            return
        raw, method, target, headers, body = parsed
        self.buffer = self.buffer[len(raw) :]
        engine = self.engine
        now = asyncio.get_running_loop().time()
        call = Call(self, raw, method, target, headers, body, len(engine.calls), now)
        self.call = call
        engine.calls.append(call)
        engine.arrival.set()
        self.task = asyncio.get_running_loop().create_task(self._run(call))
        engine.tasks.add(self.task)
        self.task.add_done_callback(engine.tasks.discard)

    async def _run(self, call: Call) -> None:
        await self.engine.script(call)
        self.served += 1
        if not self.is_closed:
            self._rest()

    def _rest(self) -> None:
        idle_s = self.engine.idle_limit_s
        if idle_s is not None and not self.is_closed:
            self.idle_timer = asyncio.get_running_loop().call_later(idle_s, self.close)


def _parse(data: bytes) -> tuple[bytes, str, str, list[tuple[str, str]], bytes] | None:
    head, mark, rest = data.partition(b"\r\n\r\n")
    if not mark:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    pairs = [line.split(":", 1) for line in lines]
    headers = [(name, value.strip()) for name, value in pairs]
    lengths = [int(value) for name, value in headers if name.lower() == "content-length"]
    if method == "GET" and not lengths:  # a probe or scrape
        lengths = [0]
    assert len(lengths) == 1, "exactly one framing is expected of the proxy"
    if len(rest) < lengths[0]:
        return None
    body = rest[: lengths[0]]
    return head + mark + body, method, target, headers, body


class FakeEngine:
    """A scripted engine; `script` may be replaced at any time."""

    def __init__(
        self,
        script: Script,
        *,
        idle_limit_s: float | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script = script
        self.tls = tls
        self.idle_limit_s = idle_limit_s
        self.calls: list[Call] = []
        self.connections: list[_Connection] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.arrival = asyncio.Event()
        self.bytes_received = 0
        self.port = 0
        self._servers: list[asyncio.Server] = []

    @classmethod
    async def start(
        cls, script: Script, *, port: int = 0, host: str = "127.0.0.1", **options: Any
    ) -> FakeEngine:
        """Start an engine on a free port."""
        engine = cls(script, **options)
        await engine.listen(host, port)
        return engine

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen (again)."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), host, port, ssl=self.tls)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        self.host = host

    @property
    def url(self) -> str:
        """The engine's address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * bool(self.tls)}://{host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return sum(not c.is_closed for c in self.connections)

    async def called(self, times: int = 1) -> list[Call]:
        """Wait until so many requests have arrived."""
        while len(self.calls) < times:
            self.arrival.clear()
            async with asyncio.timeout(10):
                await self.arrival.wait()
        return self.calls

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        for server in self._servers:
            server.close()
        for connection in self.connections:
            if not connection.is_closed:
                connection.transport.abort()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


# -- scripts ---------------------------------------------------------------------------------------


def event(text: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    """Give one chat chunk as an event."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}
    return (
        b"data: " + json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    )


def usage_event(prompt: int, output: int, *, cached: int | None = None) -> bytes:
    """Give the usage-only chunk that ends a stream."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def completion(text: str = "hi", *, prompt: int = 11, output: int = 7) -> dict[str, Any]:
    """Give a plain chat answer."""
    return {
        "id": "c",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output},
    }


def obliging(words: Sequence[str] = ("one", " two", " three"), *, gap_s: float = 0.0) -> Script:
    """Answer plain or as a stream, as asked, like a healthy engine."""

    async def script(call: Call) -> None:
        asked = call.json() if call.body else {}
        if not asked.get("stream"):
            await call.answer(200, completion("".join(words)))
            return
        events = [event(word) for word in words] + [event(finish="stop")]
        if (asked.get("stream_options") or {}).get("include_usage"):
            events.append(usage_event(11, len(words)))
        await call.stream(*events, DONE, gap_s=gap_s)

    return script


def failing(status: int, value: Any = None, *lines: str) -> Script:
    """Answer every request with a status."""

    async def script(call: Call) -> None:
        error = {"error": {"message": f"status {status}", "code": status}}
        await call.answer(status, value if value is not None else error, *lines)

    return script


async def closing(call: Call) -> None:
    """Close the connection instead of answering."""
    call.close()


async def hanging(call: Call) -> None:
    """Never answer."""
    await call.peer_closed.wait()


def in_turn(*scripts: Script) -> Script:
    """Use one script per request, the last one for all that follow."""
    served = 0

    async def script(call: Call) -> None:
        nonlocal served
        chosen = scripts[min(served, len(scripts) - 1)]
        served += 1
        await chosen(call)

    return script
