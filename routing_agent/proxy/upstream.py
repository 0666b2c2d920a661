"""Connections to engines: one pool of kept-alive connections per replica.

A connection serves one request at a time and returns to its pool when the answer was read to its
end and both sides keep it open.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from routing_agent import sockets, tls
from routing_agent.core.address import parse_url
from routing_agent.core.replica import Replica
from routing_agent.proxy import headers
from routing_agent.wire import Endpoint, Pool

if TYPE_CHECKING:
    from routing_agent.proxy.exchange import Exchange

# Below the 5 s after which uvicorn, under vLLM and SGLang, closes an idle connection.
IDLE_LIMIT_S = 4.0
# Up to this size copying a body is cheaper than a second buffer to write.
JOINED_BYTES = 32 * 1024
_INFORMATIONAL = 200
_NO_BODY = (204, 304)


class Receiver(Protocol):
    """Who uses a connection: is told what arrives."""

    def connected(self, connection: EngineConnection) -> None:
        """A new connection is there."""
        ...

    def connect_failed(self, reason: str, *, is_own_fault: bool) -> None:
        """There will be no connection, perhaps for want of a socket of our own."""
        ...

    def arrived(self, connection: EngineConnection) -> None:
        """Something of the answer arrived: see the connection's fields."""
        ...

    def lost(self, connection: EngineConnection, reason: str) -> None:
        """The connection ended before the answer did."""
        ...


class EngineConnection:
    """One connection to an engine, and the answer that is being read from it."""

    __slots__ = ("_is_between", "_is_paused", "_keep", "chunks", "content_type", "has_head",
                 "headers", "idle_since", "is_complete", "is_reused", "length", "link", "parser",
                 "passing", "receiver", "saw_bytes", "status", "transport",
                 "until_close")  # fmt: skip

    def __init__(self, link: EngineLink) -> None:
        self.link = link
        self.receiver: Receiver | None = None
        self.parser: Any = httptools.HttpResponseParser(self)
        self.is_reused = False
        self._is_paused = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.saw_bytes = False
        self.has_head = False
        self.is_complete = False
        self.status = 0
        self.content_type = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.until_close = True  # the body ends with the connection unless a header says otherwise
        self.chunks: list[bytes] = []
        self._keep = True
        # Who may pass chunks of the body on as they come; None: each is parsed.
        self.passing: Exchange | None = None
        self._is_between = False  # the next byte is the first of a chunk

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Send one request."""
        self._reset()
        self.receiver = receiver
        if len(body) < JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def take(self) -> bytes:
        """Take what arrived of the body since the last call."""
        chunks = self.chunks
        if len(chunks) == 1:
            data = chunks[0]
            chunks.clear()
            return data
        data = b"".join(chunks)
        chunks.clear()
        return data

    def release(self, now: float) -> None:
        """Return to the pool after a complete answer."""
        self.receiver = self.passing = None
        if self._keep and not self.transport.is_closing():
            self.is_reused = True
            self.idle_since = now
            self.set_reading(True)
            self.link.idle.append(self)
        else:
            self.transport.close()

    def set_reading(self, on: bool) -> None:
        """Stop or go on reading: how a slow client slows the engine down."""
        if on is self._is_paused:
            self._is_paused = not on
            (self.transport.resume_reading if on else self.transport.pause_reading)()

    def abort(self) -> None:
        """Close at once: whatever the engine still does for this request is unwanted."""
        self.receiver = self.passing = None
        self.transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self.link.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived and tell the receiver."""
        receiver = self.receiver
        if receiver is None:  # nobody asked: an engine that talks out of turn is not trusted
            self.transport.abort()
            return
        if self._is_between and self.passing is not None and self.passing.passes(data):
            return
        self.saw_bytes = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self.abort()
            receiver.lost(self, f"not HTTP: {fault}")
            return
        if self._is_between and not data.endswith(b"\r\n"):
            self._is_between = False  # the next chunk's first line has begun
        if self.has_head:
            receiver.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, or leave the pool."""
        self.link.forget(self)
        receiver, self.receiver = self.receiver, None
        self.passing = None
        if receiver is None:
            return
        if self.has_head and self.until_close and exc is None:
            self.is_complete = True
            self._keep = False
            receiver.arrived(self)
        else:
            receiver.lost(self, str(exc) if exc else "the engine closed the connection")

    def pause_writing(self) -> None:
        """The body is in memory as a whole: there is nobody to slow down."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    # -- httptools -----------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        name = name.lower()
        if name == b"content-length":
            self.length = int(value)
            self.until_close = False
        elif name == b"transfer-encoding":
            self.until_close = b"chunked" not in value.lower()
        elif name == b"connection":
            self._keep = b"close" not in value.lower()
        else:
            if name == b"content-type":
                self.content_type = value
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self.parser.get_status_code()
        if self.status >= _INFORMATIONAL:
            self.has_head = True
            if self.status in _NO_BODY:
                self.until_close = False

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self.chunks.append(data)

    def on_chunk_header(self) -> None:
        """Note that a chunk begins."""
        self._is_between = False

    def on_chunk_complete(self) -> None:
        """Note that a chunk has come whole."""
        self._is_between = True

    def on_message_complete(self) -> None:
        """Note the end of an answer; an informational one is skipped."""
        if self.has_head:
            self.is_complete = True
            self._keep = self._keep and self.parser.should_keep_alive()
        else:
            self._reset()


class EngineLink:
    """The pool of connections to one replica's address, and the head of requests to it."""

    __slots__ = ("_endpoint", "_head", "_lines", "_tasks", "_trust", "address", "connected_at",
                 "idle", "open", "replica")  # fmt: skip

    def __init__(self, replica: Replica, trust: ssl.SSLContext | None = None) -> None:
        self.replica = replica
        self.address = parse_url(replica.endpoint.url)
        self.idle: deque[EngineConnection] = deque()
        self.open: set[EngineConnection] = set()
        self.connected_at = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoint: Endpoint | None = None
        self._trust = (trust or tls.trust()) if self.address.is_tls else None
        self._refresh()

    def head(self) -> bytes:
        """Give the header lines every request to this replica carries."""
        self._refresh()
        return self._head

    def answer_lines(self, pool: Pool) -> bytes:
        """Give the header lines that tell a client who answered."""
        lines = self._lines.get(pool.name)
        if lines is None:
            lines = self._lines[pool.name] = (
                f"x-signalbox-replica: {headers.safe_value(self.replica.id)}\r\n"
                f"x-signalbox-pool: {headers.safe_value(pool.name)}\r\n"
                f"x-signalbox-version: {headers.safe_value(pool.version)}\r\n"
            ).encode()
        return lines

    def _refresh(self) -> None:
        """Make the prepared lines anew when a table has changed the endpoint."""
        endpoint = self.replica.endpoint
        if self._endpoint is endpoint:
            return
        self._endpoint = endpoint
        self._lines: dict[str, bytes] = {}
        key = f"authorization: Bearer {endpoint.credential}\r\n" if endpoint.credential else ""
        self._head = f"host: {self.address.authority}\r\n{key}".encode()

    def take_idle(self) -> EngineConnection | None:
        """Give the connection that was used last, if one is idle."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def connect(self, receiver: Receiver) -> asyncio.Task[None]:
        """Open a new connection; `receiver` is told the outcome unless the task is cancelled."""
        task = asyncio.get_running_loop().create_task(self._connect(receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, receiver: Receiver) -> None:
        address = self.address
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: cast(asyncio.Protocol, EngineConnection(self)),
                address.host,
                address.port,
                ssl=self._trust,
            )
        except OSError as fault:
            reason = tls.connection_fault(fault)
            receiver.connect_failed(reason, is_own_fault=sockets.is_own_fault(fault))
        else:
            self.connected_at = monotonic()
            receiver.connected(cast(EngineConnection, made))

    def forget(self, connection: EngineConnection) -> None:
        """Drop a connection that is gone."""
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def close_idle(self, before: float) -> None:
        """Close connections that have been idle since before `before`."""
        while self.idle and self.idle[0].idle_since < before:
            self.idle.popleft().transport.close()

    def close(self) -> None:
        """Close every connection and stop every attempt at one."""
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.open):
            connection.transport.abort()
        self.idle.clear()
