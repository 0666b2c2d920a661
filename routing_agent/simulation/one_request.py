"""The smallest HTTP client that sample traffic needs: one request, one connection, whole answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools


class Unanswered(Exception):
    """A request got no complete answer; `how` is one word for the statistics."""

    def __init__(self, how: str, detail: str = "") -> None:
        super().__init__(f"{how}: {detail}" if detail else how)
        self.how = how


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer and when its first byte of body came, in seconds after the request."""

    status: int
    body: bytes
    first_byte_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """A server to talk to."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read `http://host:port`; raises `ValueError` that says what is wrong."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no target; write it as http://host:port")
        return cls(parts.hostname, parts.port or 80)

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


async def post(
    target: Target, path: str, headers: dict[str, str], body: bytes, timeout_s: float
) -> Answer:
    """Send one request and wait for its whole answer, or raise `Unanswered`."""
    lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    return await _exchange(target, f"POST {path}", lines, body, timeout_s)


async def get(target: Target, path: str, timeout_s: float) -> Answer:
    """Ask for one page and wait for its whole answer, or raise `Unanswered`."""
    return await _exchange(target, f"GET {path}", {}, b"", timeout_s)


async def _exchange(
    target: Target, what: str, headers: dict[str, str], body: bytes, timeout_s: float
) -> Answer:
    loop = asyncio.get_running_loop()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    where = f"host: {target.host}:{target.port}\r\nconnection: close\r\n"
    request = f"{what} HTTP/1.1\r\n{where}{head}\r\n"
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, exchange = await loop.create_connection(
                lambda: _Exchange(loop, request.encode("latin-1") + body), target.host, target.port
            )
            return await exchange.answer
    except TimeoutError as problem:
        raise Unanswered("timeout") from problem
    except OSError as problem:
        raise Unanswered("away", str(problem)) from problem
    finally:
        if transport is not None:
            transport.abort()


class _Exchange(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._loop = loop
        self._request = request
        self._sent_at = 0.0
        self._first_byte_s: float | None = None
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sent_at = self._loop.time()
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(str(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "closed before the end"))

    def on_body(self, body: bytes) -> None:
        if self._first_byte_s is None:
            self._first_byte_s = self._loop.time() - self._sent_at
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self.answer.done():
            return
        elapsed = self._loop.time() - self._sent_at
        first = elapsed if self._first_byte_s is None else self._first_byte_s
        status = self._parser.get_status_code()
        self.answer.set_result(Answer(status, b"".join(self._body), first))

    def _fail(self, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(Unanswered("broken", detail))
