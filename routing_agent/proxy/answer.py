"""Relays one engine's answer: as events if it streams, else as a whole.

Nothing reaches the client before it is known that the answer is one: an attempt that fails earlier
can be made again elsewhere.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import msgspec

from routing_agent.core.cascade import doubt
from routing_agent.core.engine_errors import Kind, lacks_adapter, read_error
from routing_agent.core.retries import FAILURE_OF_STATUS, Failure, failure_of
from routing_agent.proxy import headers
from routing_agent.proxy.stream import EventReader, StreamError
from routing_agent.proxy.transcript import Transcript
from routing_agent.proxy.upstream import EngineConnection
from routing_agent.proxy.usage import Usage, usage_of_body, usage_of_tail
from routing_agent.proxy.which_model import without_logprobs
from routing_agent.wire import CascadeRule

# A plain answer up to this size is sent once it is whole, so that a broken one can be retried.
HOLD_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 4096
EVENT_STREAM: Final = b"text/event-stream"
_OK: Final = 200
_BAD: Final = 400
# Quotes inside a text are escaped in JSON, so this is never part of what a model wrote.
_ABORTED: Final = re.compile(rb'"finish_reason"\s*:\s*"abort"')


class Client(Protocol):
    """The side an answer is written to."""

    def respond(self, status: int, header_lines: bytes, body: bytes) -> None:
        """Send a whole answer."""
        ...

    def begin(self, status: int, header_lines: bytes, *, length: int | None, data: bytes) -> None:
        """Send the head and the first bytes of an answer."""
        ...

    def send(self, data: bytes) -> None:
        """Send more of a begun answer."""
        ...

    def end(self, data: bytes) -> None:
        """Send the last bytes of a begun answer."""
        ...


class Failed(msgspec.Struct):
    """Why an attempt failed; `status` and `body` are the engine's own words, if it had any."""

    failure: Failure
    detail: str
    status: int = 0
    body: bytes = b""
    content_type: bytes = b"application/json"
    retry_after: bytes | None = None
    is_event: bool = False  # `body` is the payload of the engine's own error event
    kind: Kind = "broken"
    tokens: int = 0  # that were written in vain

    @property
    def event(self) -> bytes:
        """The engine's own error event, if it sent one."""
        return b"data: " + self.body + b"\n\n" if self.is_event else b""


class PlainAnswer:
    """An answer in one piece."""

    __slots__ = ("_client", "_held", "_own", "_tail", "adapter", "events", "has_begun",
                 "has_token", "judge", "size_bytes", "status", "strip_logprobs",
                 "usage")  # fmt: skip

    def __init__(self, client: Client, own_headers: bytes) -> None:
        self._client = client
        self._own = own_headers
        self._held: list[bytes] = []
        self.size_bytes = 0
        self.status = 0
        self._tail = b""
        self.adapter = ""  # that the request is for
        self.judge: CascadeRule | None = None  # of a small model's answer
        self.strip_logprobs = False
        self.has_begun = False
        self.has_token = False
        self.events = 0
        self.usage: Usage | None = None

    def arrived(self, connection: EngineConnection) -> Failed | None:
        """Hold a short answer until it is whole; pass a long one on as it comes."""
        data = connection.take()
        self.size_bytes += len(data)
        self.status = connection.status
        if self.has_begun:
            self._pass_on(connection, data)
            return None
        if data:
            self._held.append(data)
        if connection.is_complete:
            return self._complete(connection)
        if self.size_bytes > HOLD_BYTES:
            return self._begin(connection)
        return None

    def _complete(self, connection: EngineConnection) -> Failed | None:
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        status = connection.status
        if status in FAILURE_OF_STATUS:
            return _failed_status(connection, body)
        if status == _OK:
            if is_aborted(body):
                return _ABORTED_ANSWER
            self.usage = usage_of_body(body)
            if self.judge is not None:
                judged = self._judged(self.judge, body)
                if isinstance(judged, Failed):
                    return judged
                body = judged
        elif self.adapter and (failed := _not_resident(connection, body, self.adapter)):
            return failed
        self.has_begun = True
        self._client.respond(status, headers.to_client(connection.headers) + self._own, body)
        return None

    def _judged(self, rule: CascadeRule, body: bytes) -> bytes | Failed:
        """Give what the client gets of a small model's answer, or say why it gets another."""
        try:
            why = doubt(rule, msgspec.json.decode(body))
        except msgspec.DecodeError:
            return body
        if self.strip_logprobs:
            body = without_logprobs(body)
        if not why:
            return body
        tokens = 0 if self.usage is None else self.usage.output() or 0
        return Failed("unsure", why, _OK, body, tokens=tokens)

    def _begin(self, connection: EngineConnection) -> Failed | None:
        data = b"".join(self._held)
        self._held.clear()
        if connection.status in FAILURE_OF_STATUS:
            return _failed_status(connection, data)
        self._tail = data[-TAIL_BYTES:]
        self.has_begun = True
        lines = headers.to_client(connection.headers) + self._own
        self._client.begin(connection.status, lines, length=connection.length, data=data)
        return None

    def _pass_on(self, connection: EngineConnection, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if connection.is_complete:
            self.usage = usage_of_tail(self._tail)
            self._client.end(data)
        elif data:
            self._client.send(data)


class StreamAnswer:
    """An answer as server-sent events."""

    __slots__ = ("_client", "_held", "_own", "adapter", "choices", "has_begun", "reader",
                 "size_bytes", "status", "transcript")  # fmt: skip

    def __init__(
        self,
        client: Client,
        own_headers: bytes,
        *,
        strip_usage: bool,
        transcript: Transcript | None = None,
    ) -> None:
        self._client = client
        self._own = own_headers
        self._held = b""
        self.adapter = ""  # that the request is for
        self.choices = 1  # how many the request asked for
        self.transcript = transcript  # `None`: if it breaks, it ends
        self.reader = EventReader(strip_usage=strip_usage)
        self.has_begun = False
        self.status = _OK
        self.size_bytes = 0  # counted in events

    @property
    def has_token(self) -> bool:
        """Whether the first token has come."""
        return self.reader.has_token

    @property
    def usage(self) -> Usage | None:
        """The engine's figures."""
        return self.reader.usage

    @property
    def events(self) -> int:
        """Events with content so far."""
        return self.reader.events

    def arrived(self, connection: EngineConnection) -> Failed | None:
        """Pass whole events on; end well only if the stream ended well."""
        reader = self.reader
        if self.has_begun and self.transcript is None and not connection.is_complete:
            chunks = connection.chunks
            if len(chunks) == 1 and reader.is_token(chunks[0]):
                self._client.send(chunks.pop())
                return None
        try:
            data = reader.feed(connection.take())
        except StreamError as fault:
            return Failed("broken", str(fault))
        if reader.error is not None and not (self.has_begun or reader.has_token):
            return self._engine_error()
        if not connection.is_complete:
            if data:
                self._send(connection, data)
            return self._engine_error() if reader.error is not None else None
        data += reader.end()
        if reader.is_complete:
            self._end(connection, data)
            return None
        if data and self.has_begun:
            self._send(connection, data)
        return self._engine_error() if reader.error is not None else _UNFINISHED

    def finish_cut(self, connection: EngineConnection) -> bool:
        """End well although the connection was cut, if the stream was complete before."""
        reader = self.reader
        all_ended = reader.is_done or self.choices == 1 or reader.finished_choices >= self.choices
        if not (reader.is_complete and all_ended):
            return False
        self._end(connection, self.reader.end())
        return True

    def release(self) -> None:
        """Send the final event if it waits for a usage event: there comes no more."""
        data = self.reader.release()
        if data and self.transcript is not None:
            data = self.transcript.through(data)
        if data:
            self._client.send(data)

    def _send(self, connection: EngineConnection, data: bytes) -> None:
        if self.has_begun:
            if self.transcript is not None:
                data = self.transcript.through(data)
            if data:
                self._client.send(data)
        elif self.reader.has_token or self.reader.is_complete:
            self._begin(connection, data)
        else:  # comments, or a role without a word: no proof of an answer yet
            self._held += data

    def _begin(self, connection: EngineConnection, data: bytes) -> None:
        self.has_begun = True
        lines = headers.to_client(connection.headers) + self._own
        data = self._held + data
        self._held = b""
        if self.transcript is not None:
            data = self.transcript.through(data)
        self._client.begin(_OK, lines, length=None, data=data)

    def _end(self, connection: EngineConnection, data: bytes) -> None:
        if self.has_begun:
            if self.transcript is not None:
                data = self.transcript.through(data)
            self._client.end(data)
        else:
            self._begin(connection, data)
            self._client.end(b"")

    def _engine_error(self) -> Failed:
        body = self.reader.error or b""
        error = read_error(0, body)
        return Failed(
            failure_of(error),
            error.message or "an error event",
            status=error.code,
            body=body,
            is_event=True,
            kind=error.kind,
        )


_UNFINISHED: Final = Failed("broken", "the stream ended without a finish reason")
_ABORTED_ANSWER: Final = Failed("engine_error", "it gave up on the request (finish reason abort)")


class ContinuedAnswer(StreamAnswer):
    """The rest of a stream that another engine began: its head and its beginning are sent."""

    __slots__ = ("_earlier", "_refusal", "_whole")

    def __init__(self, client: Client, transcript: Transcript, *, strip_usage: bool) -> None:
        super().__init__(client, b"", strip_usage=strip_usage, transcript=transcript)
        self.has_begun = True
        self._whole = transcript
        self._earlier = transcript.earlier_tokens
        self._refusal = b""

    @property
    def usage(self) -> Usage | None:
        """The figures of the whole stream."""
        return self._whole.usage(self.reader.usage, self._earlier)

    @property
    def events(self) -> int:
        """Tokens of the whole stream, as far as events tell."""
        return self._whole.earlier_tokens + self._whole.tokens

    def arrived(self, connection: EngineConnection) -> Failed | None:
        """Pass the rest on; anything but a stream means that this engine cannot write it."""
        if _is_stream(connection):
            return super().arrived(connection)
        self._refusal += connection.take()
        if not connection.is_complete and len(self._refusal) < HOLD_BYTES:
            return None
        if self.adapter and (lost := _not_resident(connection, self._refusal, self.adapter)):
            return lost
        failed = _failed_status(connection, self._refusal)
        return failed if connection.status in FAILURE_OF_STATUS else _cannot(failed)


def _cannot(failed: Failed) -> Failed:
    return Failed("refused", f"it did not continue the text: {failed.detail}", failed.status)


def answer_for(
    connection: EngineConnection,
    client: Client,
    own_headers: bytes,
    *,
    strip_usage: bool,
    transcript: Transcript | None = None,
) -> PlainAnswer | StreamAnswer:
    """Give the way to relay the answer whose head has come."""
    if transcript is not None and transcript.is_continuing:
        return ContinuedAnswer(client, transcript, strip_usage=strip_usage)
    if _is_stream(connection):
        return StreamAnswer(client, own_headers, strip_usage=strip_usage, transcript=transcript)
    return PlainAnswer(client, own_headers)


def _is_stream(connection: EngineConnection) -> bool:
    return connection.status == _OK and connection.content_type.startswith(EVENT_STREAM)


def _failed_status(connection: EngineConnection, body: bytes) -> Failed:
    status = connection.status
    error = read_error(status, body)
    return Failed(
        failure_of(error),
        error.message or f"status {status}",
        status=status,
        body=body,
        content_type=connection.content_type or b"text/plain",
        retry_after=headers.find(connection.headers, b"retry-after"),
        kind=error.kind,
    )


def _not_resident(connection: EngineConnection, body: bytes, adapter: str) -> Failed | None:
    """Give the failure of a request whose adapter the engine does not have, if that is why."""
    status = connection.status
    if status < _BAD or not lacks_adapter(read_error(status, body), adapter):
        return None
    failed = _failed_status(connection, body)
    failed.failure = "not_resident"
    return failed


def is_aborted(body: bytes) -> bool:
    """Say whether an engine gave up on a request under a 200, as vLLM and SGLang do when paused."""
    return b'"abort"' in body and _ABORTED.search(body) is not None
