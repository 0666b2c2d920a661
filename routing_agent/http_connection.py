"""One connection of the agent's own HTTP client, and the answer that is being read from it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools


class CallFailed(Exception):
    """A call got no complete answer; the message says why in words for an operator."""


class StaleConnection(Exception):
    """A kept connection was closed by the server before it answered anything."""


class AnswerReader:
    """Collects what httptools reads of one response."""

    def __init__(self, limit_bytes: int) -> None:
        self.headers: dict[str, str] = {}
        self.complete = False
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._limit_bytes = limit_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, chunk: bytes) -> None:
        """Keep a piece of the body, up to the limit."""
        self._size_bytes += len(chunk)
        if self._size_bytes > self._limit_bytes:
            raise CallFailed(f"the answer is larger than {self._limit_bytes} bytes")
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """Note the end."""
        self.complete = True

    @property
    def body(self) -> bytes:
        """What has come of the body and was not taken."""
        return b"".join(self._chunks)

    def take(self) -> bytes:
        """Take what has come of the body."""
        data = self.body
        self._chunks.clear()
        return data

    def is_framed(self) -> bool:
        """Say whether the answer tells where it ends; else it ends with its connection."""
        return "content-length" in self.headers or "transfer-encoding" in self.headers

    def leaves_it_open(self) -> bool:
        """Say whether another call may follow on the connection."""
        return self.is_framed() and self.headers.get("connection", "").lower() != "close"


class Connection(asyncio.Protocol):
    """One connection; it carries one call at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.idle_since = 0.0
        self._answer: AnswerReader | None = None
        self._parser: Any = None
        self._ended: asyncio.Future[None] | None = None
        self._has_heard = False

    async def converse(self, message: bytes, answer: AnswerReader) -> Any:
        """Send a request and read its answer whole; gives the parser that read it.

        Raises `StaleConnection`, `CallFailed`, `OSError` or what the parser does.
        """
        self._answer = answer
        self._parser = parser = httptools.HttpResponseParser(answer)
        self._has_heard = False
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        if self.transport.is_closing():
            self._end(StaleConnection())
        try:
            await self._ended
        finally:
            self._ended = self._answer = self._parser = None
        return parser

    def is_usable(self, now: float, limit_s: float) -> bool:
        """Say whether another call may be made, at most `limit_s` after the last one."""
        return not self.transport.is_closing() and now - self.idle_since < limit_s

    def _end(self, fault: Exception | None) -> None:
        ended = self._ended
        if ended is None or ended.done():
            return
        if fault is None:
            ended.set_result(None)
        else:
            ended.set_exception(fault)

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        answer = self._answer
        if answer is None:  # nobody asked: whatever comes next would be taken for an answer
            self.transport.close()
            return
        self._has_heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self._end(fault)
            return
        if answer.complete:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call under way, well if its answer ends with the connection."""
        if exc is not None and not isinstance(exc, ConnectionResetError):
            self._end(exc)
        elif not self._has_heard:
            self._end(StaleConnection())
        elif self._answer is not None and self._answer.headers and not self._answer.is_framed():
            self._end(None)
        else:
            self._end(CallFailed("the connection broke in the middle of the answer"))
