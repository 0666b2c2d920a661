"""HTTP/1.1 of the simulated engine: raw protocol and httptools, as in the relay it feeds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import httptools
import msgspec

if TYPE_CHECKING:
    from routing_agent.simulation.engine import Job

BODY_LIMIT_BYTES = 64 * 1024 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: close with RST instead of FIN


@dataclass(slots=True)
class HttpRequest:
    """One request, complete."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool


class Owner(Protocol):
    """Whose connections these are."""

    idle_s: float
    is_draining: bool

    def respond(self, request: HttpRequest, connection: Connection) -> None:
        """Answer a request on its connection, now or later."""

    def abandon(self, job: Job) -> None:
        """Drop the work of a client that left."""

    def left(self, connection: Connection) -> None:
        """A connection is gone."""


class Connection(asyncio.Protocol):
    """One client connection: requests are answered one after another."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[HttpRequest] = deque()
        self._busy = False
        self._answering = False
        self._keep_alive = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.jobs: list[Job] = []  # freed when the client leaves

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._wait_for_more()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the methods below."""
        self._stop_idle_timer()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse_and_close(400, "This server speaks HTTP/1.1 only.")
        except httptools.HttpParserError as problem:
            self._refuse_and_close(400, f"Invalid HTTP request: {problem}")
        if self._body_bytes > BODY_LIMIT_BYTES:
            self._refuse_and_close(413, f"The body exceeds {BODY_LIMIT_BYTES} bytes.")
        else:
            self._answer_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free everything at once: whether queued or running, nobody waits for it any more."""
        self._stop_idle_timer()
        self._waiting.clear()
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            self._owner.abandon(job)
        self._owner.left(self)

    # The parser's side

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url, self._headers, self._body, self._body_bytes = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Let a client that asked go on with its body."""
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect a piece of the body, within the limit."""
        self._body_bytes += len(body)
        if self._body_bytes <= BODY_LIMIT_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the request: it is answered once the parser has returned."""
        path, _, query = self._url.decode("latin-1").partition("?")
        request = HttpRequest(
            method=self._parser.get_method().decode(),
            path=path,
            query=query,
            headers=self._headers,
            body=b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
        )
        self._waiting.append(request)

    # The answers' side

    def send_json(self, status: int, value: object) -> None:
        """Answer with JSON."""
        self.send(status, msgspec.json.encode(value), "application/json")

    def send(self, status: int, body: bytes, content_type: str = "") -> None:
        """Answer in one piece and be ready for the next request."""
        kind = f"content-type: {content_type}\r\n" if content_type else ""
        head = f"{_status_line(status)}content-length: {len(body)}\r\n{kind}{self._ending()}\r\n"
        self._write(head.encode() + body)
        self._done()

    def begin_stream(self) -> None:
        """Send the head of an event stream."""
        self._write(
            f"{_status_line(200)}content-type: text/event-stream; charset=utf-8\r\n"
            f"transfer-encoding: chunked\r\n{self._ending()}\r\n".encode()
        )

    def send_chunks(self, *chunks: bytes) -> None:
        """Send pieces of the stream, one HTTP chunk each, in one write."""
        self._write(b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]))

    def end_stream(self) -> None:
        """Send the last chunk and be ready for the next request."""
        self._write(b"0\r\n\r\n")
        self._done()

    def reset(self) -> None:
        """Break off with a TCP reset."""
        with contextlib.suppress(OSError):  # the peer may have closed the socket already
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def close(self) -> None:
        """Close the connection once what was written is sent."""
        self._transport.close()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._busy

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _answer_waiting(self) -> None:
        """Answer one request after another, until one takes its time."""
        if self._answering:
            return  # an answer given at once: the loop below goes on
        self._answering = True
        while self._waiting and not self._busy:
            request = self._waiting.popleft()
            self._busy = True
            self._keep_alive = request.keep_alive
            self._owner.respond(request, self)
        self._answering = False

    def _done(self) -> None:
        self.jobs = []
        self._busy = False
        if not self._keep_alive or self._owner.is_draining:
            self._transport.close()
        elif self._waiting:
            self._answer_waiting()
        else:
            self._wait_for_more()

    def _ending(self) -> str:
        return "" if self._keep_alive else "connection: close\r\n"

    def _refuse_and_close(self, status: int, message: str) -> None:
        self._keep_alive = False
        self._waiting.clear()
        self.send(status, message.encode(), "text/plain; charset=utf-8")

    def _wait_for_more(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._owner.idle_s, self._transport.close)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\nserver: signalbox-simulated-engine\r\n"
