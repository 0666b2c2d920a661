"""A small HTTP/1.1 client for the agent's own calls: probes, scrapes, reports, registration.

Traffic never passes here: the relay has its own sockets. Every call has one deadline over
everything it does; a connection is kept for the next call to the same origin if the server allows.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from routing_agent import sockets, tls
from routing_agent.core.attention import Attention

READ_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024  # a table of 1,000 replicas is below 1 MiB
IDLE_CONNECTIONS_PER_ORIGIN = 4
IDLE_LIMIT_S = 30.0
DEFAULT_PORTS = {"http": 80, "https": 443}


class CallFailed(Exception):
    """A call got no complete answer; the message says why in words for an operator."""


class ConnectionRefused(CallFailed):
    """Nobody listens at the address: the process is gone, not slow."""


class OutOfSockets(CallFailed):
    """This agent itself has no socket left: it says nothing about the other side."""


class TimedOut(CallFailed):
    """No complete answer came within the deadline."""


@dataclass(frozen=True, slots=True)
class Response:
    """One complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Say whether the status is in the two hundreds."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL's connections go."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Give host and port as the Host header wants them, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def split_url(url: str) -> tuple[Origin, str]:
    """Take a URL apart into origin and target; ValueError says why that is impossible."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(
            f"{url!r} has no readable port; write an IPv6 address in brackets: http://[::1]:9001"
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme]), target


class _Answer:
    """Collects what httptools reads of one response."""

    def __init__(self, limit_bytes: int) -> None:
        self.headers: dict[str, str] = {}
        self.complete = False
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._limit_bytes = limit_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, chunk: bytes) -> None:
        self._size_bytes += len(chunk)
        if self._size_bytes > self._limit_bytes:
            raise CallFailed(f"the answer is larger than {self._limit_bytes} bytes")
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        self.complete = True

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    def take(self) -> bytes:
        data = self.body
        self._chunks.clear()
        return data

    def is_framed(self) -> bool:
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    def leaves_it_open(self) -> bool:
        return self.is_framed() and self.headers.get("connection", "").lower() != "close"


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    def is_usable(self, now: float) -> bool:
        is_open = not (self.writer.is_closing() or self.reader.at_eof())
        return is_open and now - self.idle_since < IDLE_LIMIT_S


class _Stale(Exception):
    """A kept connection was closed by the server before it answered anything."""


@dataclass
class HttpClient:
    """Makes calls one at a time per connection; safe to share between the tasks of one loop."""

    tls: ssl.SSLContext | None = None
    attention: Attention | None = None  # of the loop: time in which it did not look is not counted
    _idle: dict[Origin, list[_Connection]] = field(default_factory=dict)
    _closed: bool = False
    _swept_at: float = 0.0

    async def call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> Response:
        """Send one request and give the whole answer, or raise CallFailed within the deadline."""
        origin, target = split_url(url)
        message = _message(method, target, origin.authority, headers or {}, body)
        with _faults_in_words(origin, timeout_s):
            async with self._within(timeout_s):
                return await self._exchange(origin, message)

    async def download(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        take: Callable[[bytes], Awaitable[None]],
        limit_bytes: int,
        stall_s: float,
    ) -> Response:
        """GET a large answer and hand it to `take` as it comes; raises CallFailed.

        The limit of time is for each piece. Only the body of an answer that is not 200 is in the
        result.
        """
        origin, target = split_url(url)
        answer = _Answer(limit_bytes)
        parser = httptools.HttpResponseParser(answer)
        with _faults_in_words(origin, stall_s):
            async with self._within(stall_s):
                connection = await self._connect(origin)
            try:
                connection.writer.write(_message("GET", target, origin.authority, headers, None))
                while not answer.complete:
                    async with self._within(stall_s):
                        data = await connection.reader.read(READ_BYTES)
                    if not data:
                        raise CallFailed(f"{origin.authority} broke off its answer")
                    parser.feed_data(data)
                    if parser.get_status_code() == 200:
                        await take(answer.take())
            finally:
                connection.writer.close()
        return Response(parser.get_status_code(), answer.headers, answer.body)

    @asynccontextmanager
    async def _within(self, limit_s: float) -> AsyncIterator[None]:
        """Limit a block of code to so much time in which the loop did look."""
        loop = asyncio.get_running_loop()
        lost_before_s = self._lost_s()
        ends_at = loop.time() + limit_s
        timers: list[asyncio.TimerHandle] = []

        def look() -> None:
            at = ends_at + self._lost_s() - lost_before_s
            if at > loop.time():
                timers[:] = [loop.call_at(at, look)]
            else:
                scope.reschedule(loop.time())

        timers.append(loop.call_at(ends_at, look))
        try:
            async with asyncio.timeout(None) as scope:
                yield
        finally:
            timers[0].cancel()

    def _lost_s(self) -> float:
        return 0.0 if self.attention is None else self.attention.lost_s(time.monotonic())

    async def close(self) -> None:
        """Drop the kept connections; calls still running finish and keep none."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.writer.close()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close at the loop's next turn

    async def _exchange(self, origin: Origin, message: bytes) -> Response:
        kept = self._take(origin)
        if kept is not None:
            try:
                return await self._converse(origin, kept, message)
            except _Stale:
                pass  # closed while idle: the request was never read, a fresh connection is safe
        fresh = await self._connect(origin)
        try:
            return await self._converse(origin, fresh, message)
        except _Stale:
            raise CallFailed(
                f"{origin.authority} closed the connection without an answer"
            ) from None

    async def _connect(self, origin: Origin) -> _Connection:
        context = None
        if origin.scheme == "https":
            context = self.tls = self.tls or tls.trust()
        return _Connection(*await asyncio.open_connection(origin.host, origin.port, ssl=context))

    async def _converse(self, origin: Origin, connection: _Connection, message: bytes) -> Response:
        answer = _Answer(BODY_LIMIT_BYTES)
        parser = httptools.HttpResponseParser(answer)
        reusable = False
        try:
            connection.writer.write(message)
            await _read_answer(connection.reader, parser, answer)
            reusable = parser.get_http_version() == "1.1" and answer.leaves_it_open()
        finally:
            self._give_back(origin, connection, reusable)
        return Response(parser.get_status_code(), answer.headers, answer.body)

    def _take(self, origin: Origin) -> _Connection | None:
        now = time.monotonic()
        if now - self._swept_at >= IDLE_LIMIT_S:
            self._sweep(now)
        connections = self._idle.get(origin, [])
        while connections:
            connection = connections.pop()
            if connection.is_usable(now):
                return connection
            connection.writer.close()
        return None

    def _sweep(self, now: float) -> None:
        """Close what has been idle too long: addresses nobody calls any more must not pile up."""
        self._swept_at = now
        for origin, connections in list(self._idle.items()):
            for connection in connections:
                if not connection.is_usable(now):
                    connection.writer.close()
            self._idle[origin] = [c for c in connections if c.is_usable(now)]
            if not self._idle[origin]:
                del self._idle[origin]

    def _give_back(self, origin: Origin, connection: _Connection, reusable: bool) -> None:
        idle = self._idle.setdefault(origin, [])
        if reusable and not self._closed and len(idle) < IDLE_CONNECTIONS_PER_ORIGIN:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.writer.close()


@contextmanager
def _faults_in_words(origin: Origin, limit_s: float) -> Iterator[None]:
    """Turn whatever goes wrong in talking to a server into CallFailed."""
    try:
        yield
    except TimeoutError:
        raise TimedOut(f"no answer from {origin.authority} within {limit_s:g} s") from None
    except ConnectionRefusedError:
        raise ConnectionRefused(f"connection refused by {origin.authority}") from None
    except httptools.HttpParserError as error:
        if isinstance(error.__context__, CallFailed):
            raise error.__context__ from None
        raise CallFailed(f"{origin.authority} answered something that is not HTTP") from None
    except OSError as error:
        kind = OutOfSockets if sockets.is_own_fault(error) else CallFailed
        why = tls.connection_fault(error)
        raise kind(f"cannot talk to {origin.authority}: {why}") from None


async def _read_answer(
    reader: asyncio.StreamReader, parser: httptools.HttpResponseParser, answer: _Answer
) -> None:
    got_anything = False
    while not answer.complete:
        try:
            data = await reader.read(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            if not got_anything:
                raise _Stale
            if answer.headers and not answer.is_framed():  # it ends with the connection
                return
            raise CallFailed("the connection broke in the middle of the answer")
        got_anything = True
        parser.feed_data(data)


def _message(
    method: str, target: str, authority: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {authority}", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
