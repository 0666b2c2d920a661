"""One copy of a request: sent to a shadow, read and thrown away but for its beginning, compared."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from routing_agent import wire
from routing_agent.core.comparison import first_difference
from routing_agent.core.fleet import PoolState
from routing_agent.core.replica import Replica
from routing_agent.proxy.answer import EVENT_STREAM, Client
from routing_agent.proxy.answer_text import text_of
from routing_agent.proxy.splice import rewrite
from routing_agent.proxy.stream import EventReader, StreamError
from routing_agent.proxy.upstream import EngineConnection, EngineLink
from routing_agent.proxy.usage import Usage, usage_of_body

if TYPE_CHECKING:
    from routing_agent.metrics import FinishedRequest
    from routing_agent.proxy.exchange import Exchange
    from routing_agent.proxy.shadows import Shadows

KEPT_BYTES: Final = 64 * 1024  # of each answer: what is compared
TEXT_LENGTH: Final = 4000  # of each text: what is told
PROMPT_BYTES: Final = 16 * 1024
_OK: Final = 200
_LEFT: Final = 499
_FAR_S: Final = 1e9  # the end-to-end limit comes sooner


class Heard:
    """The beginning of one answer, and what it tells."""

    __slots__ = ("body", "is_cut", "is_stream", "status")

    def __init__(self) -> None:
        self.body = bytearray()
        self.is_cut = False
        self.is_stream = False
        self.status = 0

    def add(self, data: bytes) -> None:
        """Keep what there is room for."""
        room = KEPT_BYTES - len(self.body)
        if len(data) > room:
            self.is_cut = True
            data = data[:room]
        self.body += data

    def text(self) -> str:
        """Give the text of what was kept."""
        return text_of(bytes(self.body), is_stream=self.is_stream)


class Tee:
    """Passes the primary's answer on, and keeps its beginning."""

    __slots__ = ("_client", "_heard")

    def __init__(self, client: Client, heard: Heard) -> None:
        self._client = client
        self._heard = heard

    def respond(self, status: int, header_lines: bytes, body: bytes) -> None:
        """Pass a whole answer on."""
        self._heard.status = status
        self._heard.add(body)
        self._client.respond(status, header_lines, body)

    def begin(self, status: int, header_lines: bytes, *, length: int | None, data: bytes) -> None:
        """Pass the beginning of an answer on."""
        self._heard.status = status
        self._heard.is_stream = EVENT_STREAM in header_lines
        self._heard.add(data)
        self._client.begin(status, header_lines, length=length, data=data)

    def send(self, data: bytes) -> None:
        """Pass more on."""
        self._heard.add(data)
        self._client.send(data)

    def end(self, data: bytes) -> None:
        """Pass the end on."""
        self._heard.add(data)
        self._client.end(data)


class Copy:
    """One request's copy, from its start to its pair."""

    def __init__(
        self,
        shadows: Shadows,
        exchange: Exchange,
        shadow: wire.Shadow,
        replica: Replica,
        pool: PoolState,
        body: bytes,
    ) -> None:
        self.shadows = shadows
        self.shadow = shadow
        self.replica = replica
        self.pool = pool
        self.is_over = False
        self.error = ""
        self.heard = Heard()
        self.primary = Heard()
        self.usage: Usage | None = None
        self.began_at = 0.0
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.own_id = exchange.own_id
        self.request_id = exchange.request_id
        self.path = exchange.incoming.path
        self.is_stream = exchange.request is not None and exchange.request.is_stream
        self._model = "" if exchange.request is None else exchange.request.model
        self._asks_usage = exchange.strip_usage
        self._prompt = body[:PROMPT_BYTES] if shadow.keep == "prompts" else b""
        self._body = body
        self._link = EngineLink(replica, shadows.proxy.engine_trust)
        self._connection: EngineConnection | None = None
        self._reader: EventReader | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._finished: FinishedRequest | None = None  # the primary

    def tee(self, exchange: Exchange) -> Tee:
        """Give what the primary's answer goes through; one that is tried again begins anew."""
        self.primary = Heard()
        return Tee(exchange.client, self.primary)

    # -- its life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect; the loop has taken care of the primary before."""
        if self.is_over:
            return
        settings = self.pool.settings
        self.began_at = monotonic()
        self._set_deadline(settings.connect_limit_s)
        self._watch()
        self._link.connect(self)

    def _set_deadline(self, limit_s: float) -> None:
        end_at = self.began_at + self.pool.settings.end_to_end_limit_s
        self._deadline = min(monotonic() + limit_s, end_at)

    def _watch(self) -> None:
        wait_s = max(self._deadline - monotonic(), 0.0)
        self._timer = self.shadows.proxy.loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        if monotonic() >= self._deadline:
            self._end("timed_out", "it did not answer within the pool's limits")
        else:
            self._watch()

    def give_up(self, outcome: str, why: str) -> None:
        """End a copy that somebody else's need, or nobody's, ends."""
        self._end(outcome, why)

    def primary_over(self, record: FinishedRequest) -> None:
        """Note the primary's end; when its client left, nobody needs the copy."""
        if record.status == _LEFT:
            self._end("cancelled", "the client left")
            self.shadows.forget(self)
            return
        self._finished = record
        if self.is_over:
            self.shadows.paired(self, record)

    def _end(self, outcome: str, error: str = "") -> None:
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        self.ended_at = monotonic()
        self._body = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.receiver = None
        self._link.close()
        self.shadows.ended(self, outcome)
        if self._finished is not None:
            self.shadows.paired(self, self._finished)

    # -- Receiver of the connection ------------------------------------------------------------

    def connected(self, connection: EngineConnection) -> None:
        """Send the request."""
        if self.is_over:
            connection.abort()
            return
        self._connection = connection
        served = self.replica.endpoint.served_model or self.pool.pool.model
        model = served if served != self._model else None
        body = self._body
        if model is not None or self._asks_usage:
            body = rewrite(body, model=model, ask_usage=self._asks_usage)
        head = (
            b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-request-id: %b-shadow\r\nconnection: close\r\n\r\n"
        ) % (self.path.encode(), self._link.head(), len(body), self.request_id)
        self._body = b""
        self._set_deadline(self.pool.settings.ttft_limit_s if self.is_stream else _FAR_S)
        connection.send(self, head, body)

    def connect_failed(self, reason: str, *, is_own_fault: bool) -> None:
        """End without a connection."""
        self._end("failed", f"cannot connect: {reason}")

    def arrived(self, connection: EngineConnection) -> None:
        """Read what arrived; keep its beginning, throw the rest away."""
        data = connection.take()
        if not self.heard.status:
            self._note_head(connection)
        self.heard.add(data)
        if self._reader is not None and not self._read(data):
            return
        if connection.is_complete:
            self._complete()
        else:
            self._set_deadline(self.pool.settings.stall_limit_s if self._reader else _FAR_S)

    def _note_head(self, connection: EngineConnection) -> None:
        self.heard.status = connection.status
        if connection.status == _OK and connection.content_type.startswith(EVENT_STREAM):
            self.heard.is_stream = True
            self._reader = EventReader(strip_usage=False)

    def _read(self, data: bytes) -> bool:
        """Follow a stream; false if it cannot be followed."""
        reader = self._reader
        assert reader is not None  # noqa: S101 - asked by the caller
        try:
            reader.feed(data)
        except StreamError as fault:
            self._end("failed", str(fault))
            return False
        if self.first_at is None and reader.has_token:
            self.first_at = monotonic()
        return True

    def _complete(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.end()
            self.usage = reader.usage
            is_good = reader.is_complete
        else:
            is_good = self.heard.status == _OK
            self.usage = usage_of_body(bytes(self.heard.body)) if is_good else None
        if is_good:
            self._end("answered")
        elif self.heard.status == _OK:
            self._end("failed", "the stream did not end well")
        else:
            self._end("failed", f"the engine answered {self.heard.status}")

    def lost(self, connection: EngineConnection, reason: str) -> None:
        """End with half an answer."""
        self._end("failed", f"the answer broke off: {reason}")

    # -- the pair ------------------------------------------------------------------------------

    def pair(self, primary: FinishedRequest) -> wire.ShadowPair:
        """Put both sides together."""
        ours, theirs = self.primary.text(), self.heard.text()
        difference = first_difference(ours, theirs)
        both_good = primary.status == _OK == self.heard.status and not self.error
        return wire.ShadowPair(
            uid=self.own_id.decode(),
            request_id=self.request_id.decode(),
            at=round(primary.at - primary.e2e_s, 3),
            tenant=primary.tenant,
            model=primary.model,
            pool=primary.pool,
            shadow_pool=self.pool.pool.name,
            path=self.path,
            stream=self.is_stream,
            primary=self._told(
                wire.ShadowAnswer(
                    version=primary.version,
                    replica=primary.replica,
                    status=primary.status,
                    error=primary.error,
                    is_cut=self.primary.is_cut,
                    prompt_tokens=primary.prompt_tokens,
                    output_tokens=primary.output_tokens,
                    ttft_s=primary.ttft_s,
                    duration_s=primary.e2e_s,
                ),
                ours,
            ),
            shadow=self._told(self._answer(), theirs),
            is_same=both_good and difference is None,
            first_difference=difference if both_good else None,
            prompt=self._prompt.decode(errors="replace"),
        )

    def _answer(self) -> wire.ShadowAnswer:
        usage, began = self.usage, self.began_at
        return wire.ShadowAnswer(
            version=self.pool.pool.version,
            replica=self.replica.id,
            status=self.heard.status,
            error=self.error,
            is_cut=self.heard.is_cut,
            prompt_tokens=None if usage is None else usage.prompt(),
            output_tokens=None if usage is None else usage.output(),
            ttft_s=None if self.first_at is None else self.first_at - began,
            duration_s=None if self.ended_at is None or not began else self.ended_at - began,
        )

    def _told(self, answer: wire.ShadowAnswer, text: str) -> wire.ShadowAnswer:
        kept = "" if self.shadow.keep == "figures" else text[:TEXT_LENGTH]
        return msgspec.structs.replace(answer, text=kept, text_length=len(text))
