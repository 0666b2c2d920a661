"""Client connections: HTTP/1.x in, answers out.

Requests on one connection are answered in order. While one is under way, what the client sends next
is kept unparsed up to a limit; then reading stops until there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

import httptools
import structlog

from routing_agent.core.sampling import FAILED_FROM
from routing_agent.proxy import admission, local
from routing_agent.proxy.errors import STATUS_LINES, ErrorAnswer
from routing_agent.proxy.exchange import Exchange
from routing_agent.proxy.headers import WANTED
from routing_agent.proxy.incoming import METHODS, NOBODY, USUAL, Incoming, body_fault, path_of

if TYPE_CHECKING:
    from routing_agent.proxy.server import Proxy

log = structlog.get_logger(__name__)

# Apache allows 8 KiB a line, nginx 8 KiB, uvicorn 64 KiB in all: as generous as the most generous.
HEAD_LIMIT_BYTES: Final = 64 * 1024
BACKLOG_BYTES: Final = 64 * 1024
WRITE_BUFFER_BYTES: Final = 64 * 1024
# Against clients that open connections and dawdle.
HEAD_LIMIT_S: Final = 10.0
BODY_STALL_S: Final = 20.0
KEEP_ALIVE_S: Final = 75.0  # as nginx
LINGER_S: Final = 2.0
NEVER: Final = float("inf")
# A refused body up to this size is read and dropped, so that the connection can be kept.
DROPPED_BODY_BYTES: Final = 64 * 1024


class ClientConnection:
    """One client's connection."""

    __slots__ = ("_backlog", "_backlog_size", "_chunked", "_deaf", "_exchange", "_feeding",
                 "_head_bytes", "_head_done", "_incoming", "_keep_alive", "_known", "_known_by",
                 "_lingering", "_parser", "_proxy", "_ready", "_target", "deadline",
                 "transport")  # fmt: skip

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._parser: Any = httptools.HttpRequestParser(self)
        self._incoming: Incoming | None = None
        self._ready: deque[Incoming] = deque()
        self._exchange: Exchange | None = None
        self._backlog: list[bytes] = []
        self._backlog_size = 0
        self._head_bytes = 0
        self._head_done = False
        self._target = b""
        self._deaf = False  # nothing more is read as HTTP: the connection will be closed
        self._lingering = False
        self._feeding = False
        self._keep_alive = True
        self._chunked = False
        # Who the last request came from, by what it said and under which table: clients of a kept
        # connection send the same key each time, and hashing it is dear.
        self._known = NOBODY
        self._known_by: tuple[int, bytes | None] | None = None
        self.deadline = NEVER

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._proxy.clients.add(self)
        self.deadline = self._proxy.now + HEAD_LIMIT_S

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, or keep it while a request is under way."""
        if self._deaf:
            return
        if self._exchange is not None:
            self._keep_for_later(data)
            return
        self._feed(data)
        self._serve_next()

    def eof_received(self) -> bool:
        """Take the end of the client's side as its leaving, as nginx and the engines do."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Free whatever worked for this client."""
        self._proxy.clients.discard(self)
        self._deaf = True
        self._ready.clear()
        if self._exchange is not None:
            self._exchange.client_left()

    def pause_writing(self) -> None:
        """Slow the engine down: the client reads more slowly than it writes."""
        if self._exchange is not None:
            self._exchange.client_is_full()

    def resume_writing(self) -> None:
        """Let the engine go on."""
        if self._exchange is not None:
            self._exchange.client_has_room()

    # -- in ------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # no protocol but this one is spoken here: answered, then closed
        except httptools.HttpParserError as fault:
            self._refuse_now(ErrorAnswer("malformed_http", f"Not valid HTTP/1.1: {fault}."))
        self._feeding = False
        if not self._head_done and self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse_now(
                ErrorAnswer("headers_too_large", f"Headers above {HEAD_LIMIT_BYTES} bytes.")
            )
        if self._incoming is not None:
            wait_s = BODY_STALL_S if self._head_done else HEAD_LIMIT_S
            if self._head_done or self.deadline == NEVER:
                self.deadline = self._proxy.now + wait_s

    def _keep_for_later(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_size += len(data)
        if self._backlog_size > BACKLOG_BYTES:
            self.transport.pause_reading()

    def _refuse_now(self, refusal: ErrorAnswer) -> None:
        """Answer as soon as it is this request's turn, and read nothing more."""
        if self._deaf:
            return
        incoming = self._incoming or Incoming()
        self._incoming = None
        incoming.refusal = refusal
        incoming.keep_alive = False
        self._deaf = True
        self._ready.append(incoming)

    def _serve_next(self) -> None:
        """Answer what is complete, in order, until a request has to wait for an engine."""
        while self._exchange is None and not self.transport.is_closing():
            if self._ready:
                self._serve(self._ready.popleft())
            elif self._backlog and not self._deaf:
                data = b"".join(self._backlog)
                self._backlog.clear()
                self._backlog_size = 0
                self.transport.resume_reading()
                self._feed(data)
            else:
                break

    def _serve(self, incoming: Incoming) -> None:
        self.deadline = NEVER
        self._keep_alive = incoming.keep_alive and not self._proxy.is_draining
        if incoming.refusal is not None:
            lines = local.JSON_LINE + incoming.refusal.headers() + incoming.extra_lines
            if incoming.refusal.status >= FAILED_FROM:
                lines += self._proxy.refused(incoming, incoming.refusal)
            self._respond_locally(incoming, incoming.refusal.status, lines, incoming.refusal.body())
        elif incoming.method == "POST":
            exchange = self._exchange = Exchange(self._proxy, self, incoming)
            self._proxy.started(exchange)
            try:
                exchange.start()
            except Exception:
                log.exception("request_broke", request_id=exchange.request_id.decode())
                exchange.cut(_INTERNAL)
        else:
            proxy = self._proxy
            answer = local.answered(incoming, proxy.fleet, proxy.extra_paths())
            self._respond_locally(incoming, *answer)

    def _respond_locally(self, incoming: Incoming, status: int, lines: bytes, body: bytes) -> None:
        is_head = incoming.method == "HEAD"
        self._write_head(status, lines, length=len(body), data=b"" if is_head else body)
        self._proxy.metrics.answered_locally(status)
        self._after_answer()

    # -- httptools -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._incoming = Incoming()
        self._target = b""
        self._head_done = False

    def on_url(self, url: bytes) -> None:
        """Take (a piece of) the request's target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that routing or engines may see."""
        name = name.lower()
        incoming = self._incoming
        if name in WANTED and incoming is not None and not self._head_done:
            incoming.headers[name] = value

    def on_headers_complete(self) -> None:
        """Judge a request by its head, before its body is read."""
        incoming = self._incoming
        if incoming is None:
            return
        self._head_done = True
        parser = self._parser
        method = parser.get_method()
        incoming.method = METHODS.get(method) or method.decode("ascii", "replace")
        incoming.version = parser.get_http_version()
        incoming.keep_alive = parser.should_keep_alive() and incoming.version == "1.1"
        self._judge_head(incoming)
        declared = int(incoming.headers.get(b"content-length", 0))  # checked by the parser
        if incoming.refusal is None:
            if declared > self._proxy.body_limit:
                self._refuse_now(admission.body_too_large(self._proxy.body_limit))
            elif b"expect" in incoming.headers and self._exchange is None and not self._ready:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif declared > DROPPED_BODY_BYTES or b"expect" in incoming.headers:
            self._refuse_now(incoming.refusal)

    def _judge_head(self, incoming: Incoming) -> None:
        proxy = self._proxy
        usual = USUAL.get(self._target)
        if usual is not None and incoming.method == "POST":
            incoming.path = usual
            incoming.refusal = self._identify(incoming) or body_fault(incoming)
            return
        incoming.path = path = path_of(self._target)
        methods = local.allowed_methods(path, proxy.extra_paths())
        if methods is None:
            incoming.refusal = ErrorAnswer("unknown_path", f"There is no {path[:200]} here.")
        elif incoming.method not in methods:
            refusal = local.method_error(incoming.method, path, methods)
            incoming.refusal, incoming.extra_lines = refusal
        elif incoming.method != "OPTIONS" and local.needs_key(path):
            incoming.refusal = self._identify(incoming) or body_fault(incoming)

    def _identify(self, incoming: Incoming) -> ErrorAnswer | None:
        table = self._proxy.fleet.table
        if table is None:
            return admission.NO_TABLE
        given = incoming.headers
        authorization = given.get(b"authorization")
        if authorization is None and b"x-api-key" in given:  # as Anthropic clients send it
            authorization = b"Bearer " + given[b"x-api-key"]
        said = (self._proxy.fleet.generation, authorization)
        if said == self._known_by:
            incoming.caller = self._known
            return None
        caller = admission.identify(table, authorization, wall=self._proxy.wall)
        if isinstance(caller, ErrorAnswer):
            return caller
        if caller.expires_at is None:
            self._known_by, self._known = said, caller
        incoming.caller = caller
        return None

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body, up to the limit."""
        incoming = self._incoming
        if incoming is None or incoming.refusal is not None:
            return
        incoming.size += len(data)
        if incoming.size > self._proxy.body_limit:
            incoming.parts.clear()
            self._refuse_now(admission.body_too_large(self._proxy.body_limit))
            return
        incoming.parts.append(data)

    def on_message_complete(self) -> None:
        """Take a request that has come in whole."""
        incoming, self._incoming = self._incoming, None
        self._head_bytes = 0
        self._head_done = False
        if incoming is None or self._deaf:
            return
        parts = incoming.parts
        incoming.body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        incoming.received_at = monotonic()
        self._ready.append(incoming)

    # -- out -----------------------------------------------------------------------------------

    @property
    def takes_chunks(self) -> bool:
        """Whether the answer that has begun goes out in chunks."""
        return self._chunked

    def respond(self, status: int, header_lines: bytes, body: bytes) -> None:
        """Send a whole answer."""
        self._write_head(status, header_lines, length=len(body), data=body)

    def begin(self, status: int, header_lines: bytes, *, length: int | None, data: bytes) -> None:
        """Send the head and the first bytes of an answer."""
        self._write_head(status, header_lines, length=length, data=data)

    def send(self, data: bytes) -> None:
        """Send more of a begun answer."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.transport.write(data)

    def end(self, data: bytes) -> None:
        """Send the last bytes of a begun answer."""
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self.transport.write(data)

    def abort(self) -> None:
        """Cut the connection: the client must not take what it has for a whole answer."""
        self._deaf = True
        self._keep_alive = False
        self.transport.abort()

    def exchange_over(self) -> None:
        """Go on with the next request, or close."""
        self._exchange = None
        self._after_answer()
        if not self._feeding:
            self._serve_next()

    def _write_head(self, status: int, lines: bytes, *, length: int | None, data: bytes) -> None:
        self._chunked = False
        if self._proxy.is_draining:
            self._keep_alive = False
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self._may_chunk():
            framing = b"transfer-encoding: chunked\r\n"
            self._chunked = True
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        else:
            framing = b""
            self._keep_alive = False
        if not self._keep_alive or self._deaf:
            framing += b"connection: close\r\n"
        self.transport.write(b"".join((STATUS_LINES[status], lines, framing, b"\r\n", data)))

    def _may_chunk(self) -> bool:
        exchange = self._exchange
        return exchange is None or exchange.incoming.version == "1.1"

    def _after_answer(self) -> None:
        if self.transport.is_closing():
            return
        if self._deaf and not self._ready:
            self._linger()
        elif not self._keep_alive:
            self.transport.close()
        else:
            self.deadline = self._proxy.now + KEEP_ALIVE_S

    def _linger(self) -> None:
        """Close softly: a reset would take the answer away from a client that still sends."""
        self._lingering = True
        self.deadline = self._proxy.now + LINGER_S
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def deadline_passed(self) -> None:
        """End a connection that dawdles."""
        self.deadline = NEVER
        if self._incoming is not None and not self._lingering:
            self._refuse_now(ErrorAnswer("request_timeout", "The request came too slowly."))
            self._serve_next()
        elif self._lingering:
            self.transport.abort()
        else:
            self.transport.close()

    def close_if_idle(self) -> None:
        """Close now if no request is under way: the agent is draining."""
        if self._exchange is None and self._incoming is None:
            self.transport.close()

    @property
    def exchange(self) -> Exchange | None:
        """The request under way."""
        return self._exchange


_INTERNAL: Final = ErrorAnswer(
    "internal_error", "The router failed at this request. Its log has the reason."
)
