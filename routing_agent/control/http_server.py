"""The admin port's own small HTTP/1.1 server: whole requests in, whole answers out.

It shares the event loop with the relay but none of its code: nothing here may slow a token down,
and nothing here needs to be fast.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import httptools
import msgspec
import structlog

log = structlog.get_logger()

READ_BYTES = 64 * 1024
BODY_LIMIT_BYTES = 64 * 1024 * 1024  # a table of 1,000 replicas is below 1 MiB
HEAD_LIMIT_BYTES = 64 * 1024
CONNECTION_LIMIT = 256
REQUEST_LIMIT_S = 15.0  # from the first byte of a request to its last
IDLE_LIMIT_S = 75.0


@dataclass(frozen=True, slots=True)
class Request:
    """One complete request."""

    method: str
    target: str  # as sent, query included: what a signature covers
    headers: Mapping[str, str]  # by lower-case name
    body: bytes
    peer: str  # the caller's address

    @property
    def path(self) -> str:
        """Give the target without its query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Answer]]


def json_answer(content: object, status: int = 200) -> Answer:
    """Answer with a wire message or plain data as JSON."""
    return Answer(status, msgspec.json.encode(content))


def error_answer(status: int, code: str, message: str) -> Answer:
    """Answer with an error in the product's shape."""
    return json_answer({"error": {"code": code, "message": message}}, status)


class _BadRequest(Exception):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer


class _Incoming:
    """Collects what httptools reads of one request."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.head_complete = self.complete = False
        self._head_bytes = 0

    def on_url(self, part: bytes) -> None:
        self._count(len(part))
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, part: bytes) -> None:
        if len(self.body) + len(part) > BODY_LIMIT_BYTES:
            message = f"The body is larger than {BODY_LIMIT_BYTES} bytes."
            raise _BadRequest(error_answer(413, "too_large", message))
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            raise _BadRequest(error_answer(431, "too_large", "The request head is too large."))


class HttpServer:
    """Serves one handler on one port."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def start(self, host: str, port: int) -> int:
        """Listen; give the port (useful with port 0)."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end all connections."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= CONNECTION_LIMIT:
            writer.close()
            return
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, TimeoutError):
            pass  # the caller left, or never finished: nobody is there to be answered
        except asyncio.CancelledError:
            # Ends here when `close` asked for it: asyncio's streams print a cancelled handler.
            if not self._is_closing:
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; true if the connection may be used again."""
        async with asyncio.timeout(IDLE_LIMIT_S):
            first = await reader.read(READ_BYTES)
        if not first:
            return False
        incoming = _Incoming()
        parser = httptools.HttpRequestParser(incoming)
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                await _read_request(first, reader, writer, parser, incoming)
        except _BadRequest as bad:
            await _send(writer, bad.answer, keep=False)
            return False
        request = Request(
            method=parser.get_method().decode("latin-1"),
            target=incoming.target.decode("latin-1"),
            headers=incoming.headers,
            body=bytes(incoming.body),
            peer=str((writer.get_extra_info("peername") or ("",))[0]),
        )
        keep = parser.should_keep_alive()
        await _send(writer, await self._answer(request), keep=keep)
        return keep

    async def _answer(self, request: Request) -> Answer:
        try:
            return await self._handler(request)
        except Exception:
            # The relay must outlive a fault in its own administration.
            log.exception("admin_request_failed", method=request.method, path=request.path)
            return error_answer(500, "internal", "The agent failed to answer; its log says why.")


async def _read_request(
    data: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parser: httptools.HttpRequestParser,
    incoming: _Incoming,
) -> None:
    asked_to_continue = False
    while True:
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, _BadRequest):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            message = f"This is not a readable HTTP request: {error}"
            raise _BadRequest(error_answer(400, "bad_request", message)) from None
        if incoming.complete:
            return
        expects = incoming.headers.get("expect", "").lower() == "100-continue"
        if incoming.head_complete and expects and not asked_to_continue:
            asked_to_continue = True
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = await reader.read(READ_BYTES)
        if not data:
            raise ConnectionResetError


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, keep: bool) -> None:
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.body)}",
        f"connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_LIMIT_S):
            await writer.drain()
