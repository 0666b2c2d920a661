"""A small HTTP/1.1 client for the agent's own calls: probes, scrapes, reports, registration.

Traffic never passes here: the relay has its own sockets. Every call has one deadline over
everything it does; a connection is kept for the next call to the same origin if the server allows.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools

from routing_agent import sockets, tls
from routing_agent.core.attention import Attention
from routing_agent.http_connection import AnswerReader, CallFailed, Connection, StaleConnection

URLS_KEPT = 4096  # taken apart: the same few pages of each engine are called again and again
READ_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024  # a table of 1,000 replicas is below 1 MiB
IDLE_CONNECTIONS_PER_ORIGIN = 4
IDLE_LIMIT_S = 30.0
DEFAULT_PORTS = {"http": 80, "https": 443}


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


@lru_cache(maxsize=URLS_KEPT)
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


@dataclass
class HttpClient:
    """Makes calls one at a time per connection; safe to share between the tasks of one loop."""

    tls: ssl.SSLContext | None = None
    attention: Attention | None = None  # of the loop: time in which it did not look is not counted
    _idle: dict[Origin, list[Connection]] = field(default_factory=dict)
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
        try:
            async with _Within(self, timeout_s):
                return await self._exchange(origin, message)
        except (OSError, httptools.HttpParserError) as error:
            raise _in_words(error, origin, timeout_s) from None

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
        answer = AnswerReader(limit_bytes)
        parser = httptools.HttpResponseParser(answer)
        try:
            async with _Within(self, stall_s):
                reader, writer = await asyncio.open_connection(
                    origin.host, origin.port, ssl=self._trust(origin)
                )
            try:
                writer.write(_message("GET", target, origin.authority, headers, None))
                while not answer.complete:
                    async with _Within(self, stall_s):
                        data = await reader.read(READ_BYTES)
                    if not data:
                        raise CallFailed(f"{origin.authority} broke off its answer")
                    parser.feed_data(data)
                    if parser.get_status_code() == 200:
                        await take(answer.take())
            finally:
                writer.close()
        except (OSError, httptools.HttpParserError) as error:
            raise _in_words(error, origin, stall_s) from None
        return Response(parser.get_status_code(), answer.headers, answer.body)

    def lost_s(self) -> float:
        """Give the seconds in which the loop did not look, so far."""
        return 0.0 if self.attention is None else self.attention.lost_s(time.monotonic())

    async def close(self) -> None:
        """Drop the kept connections; calls still running finish and keep none."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.transport.close()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close at the loop's next turn

    async def _exchange(self, origin: Origin, message: bytes) -> Response:
        kept = self._take(origin)
        if kept is not None:
            try:
                return await self._converse(origin, kept, message)
            except StaleConnection:
                pass  # closed while idle: the request was never read, a fresh connection is safe
        fresh = await self._connect(origin)
        try:
            return await self._converse(origin, fresh, message)
        except StaleConnection:
            raise CallFailed(
                f"{origin.authority} closed the connection without an answer"
            ) from None

    def _trust(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.scheme != "https":
            return None
        self.tls = self.tls or tls.trust()
        return self.tls

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            Connection, origin.host, origin.port, ssl=self._trust(origin)
        )
        return connection

    async def _converse(self, origin: Origin, connection: Connection, message: bytes) -> Response:
        answer = AnswerReader(BODY_LIMIT_BYTES)
        reusable = False
        try:
            parser = await connection.converse(message, answer)
            reusable = parser.get_http_version() == "1.1" and answer.leaves_it_open()
        finally:
            self._give_back(origin, connection, reusable)
        return Response(parser.get_status_code(), answer.headers, answer.body)

    def _take(self, origin: Origin) -> Connection | None:
        now = time.monotonic()
        if now - self._swept_at >= IDLE_LIMIT_S:
            self._sweep(now)
        connections = self._idle.get(origin, [])
        while connections:
            connection = connections.pop()
            if connection.is_usable(now, IDLE_LIMIT_S):
                return connection
            connection.transport.close()
        return None

    def _sweep(self, now: float) -> None:
        """Close what has been idle too long: addresses nobody calls any more must not pile up."""
        self._swept_at = now
        for origin, connections in list(self._idle.items()):
            for connection in connections:
                if not connection.is_usable(now, IDLE_LIMIT_S):
                    connection.transport.close()
            self._idle[origin] = [c for c in connections if c.is_usable(now, IDLE_LIMIT_S)]
            if not self._idle[origin]:
                del self._idle[origin]

    def _give_back(self, origin: Origin, connection: Connection, reusable: bool) -> None:
        idle = self._idle.setdefault(origin, [])
        if reusable and not self._closed and len(idle) < IDLE_CONNECTIONS_PER_ORIGIN:
            connection.idle_since = time.monotonic()
            idle.append(connection)
        else:
            connection.transport.close()


class _Within:
    """Limits a block of code to so much time in which the loop did look."""

    __slots__ = ("_client", "_ends_at", "_loop", "_lost_before_s", "_scope", "_timer")

    def __init__(self, client: HttpClient, limit_s: float) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._lost_before_s = client.lost_s()
        self._ends_at = self._loop.time() + limit_s

    async def __aenter__(self) -> None:
        self._timer = self._loop.call_at(self._ends_at, self._look)
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        self._timer.cancel()
        await self._scope.__aexit__(*raised)

    def _look(self) -> None:
        at = self._ends_at + self._client.lost_s() - self._lost_before_s
        if at > self._loop.time():
            self._timer = self._loop.call_at(at, self._look)
        else:
            self._scope.reschedule(self._loop.time())


def _in_words(error: Exception, origin: Origin, limit_s: float) -> CallFailed:
    """Make whatever goes wrong in talking to a server a CallFailed."""
    if isinstance(error, TimeoutError):
        return TimedOut(f"no answer from {origin.authority} within {limit_s:g} s")
    if isinstance(error, ConnectionRefusedError):
        return ConnectionRefused(f"connection refused by {origin.authority}")
    if isinstance(error, OSError):
        kind = OutOfSockets if sockets.is_own_fault(error) else CallFailed
        return kind(f"cannot talk to {origin.authority}: {tls.connection_fault(error)}")
    if isinstance(error.__context__, CallFailed):
        return error.__context__
    return CallFailed(f"{origin.authority} answered something that is not HTTP")


def _message(
    method: str, target: str, authority: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {authority}", "accept: */*"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
