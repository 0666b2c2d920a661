"""The client of live load: keep-alive connections, streamed answers, the time of each part."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

from routing_agent.simulation.one_request import Target

OK = "ok"
_DATA = b"data:"
_DONE = b"[DONE]"
# Servers close idle connections (uvicorn, and so vLLM, after 5 s); a request on one that is being
# closed would be lost, and no fault of the server.
IDLE_LIMIT_S = 2.0


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens as the engine counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        said = self.delta
        return bool(
            self.text or (said and (said.content or said.reasoning or said.reasoning_content))
        )


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Answer:
    """What came of one request; times are of `time.monotonic`, finer than the loop's clock."""

    asked_at: float
    status: int | None = None  # None: no answer
    outcome: str = "no answer"  # "ok", or what went wrong in one word
    detail: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    first_token_at: float | None = None
    ended_at: float = 0.0
    usage: Usage | None = None
    finish_reason: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.asked_at

    @property
    def e2e_s(self) -> float:
        """Time to the end of the answer."""
        return self.ended_at - self.asked_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first, as the agent counts it."""
        tokens = self.usage.completion_tokens if self.usage else 0
        if self.first_token_at is None or tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (tokens - 1)


class Clients:
    """Connections to some servers, used again while they are kept open."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle: dict[Target, list[_Connection]] = defaultdict(list)

    async def ask(self, target: Target, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Send one streamed request now; whatever happens is told by the answer."""
        answer = Answer(time.monotonic())
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connection(target)
                await connection.exchange(_request(target, path, headers, body), answer)
        except TimeoutError:
            answer.outcome, answer.detail = "timeout", f"no end within {self._timeout_s:g} s"
        except OSError as problem:
            answer.outcome, answer.detail = "connection", str(problem)
        finally:
            answer.ended_at = time.monotonic()
            if connection is not None:
                self._give_back(target, connection)
        return answer

    def close(self) -> None:
        """Close what is idle."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _connection(self, target: Target) -> _Connection:
        idle = self._idle[target]
        while idle:
            connection = idle.pop()
            if connection.is_usable and time.monotonic() - connection.used_at < IDLE_LIMIT_S:
                return connection
            connection.close()
        _, fresh = await asyncio.get_running_loop().create_connection(
            _Connection, target.host, target.port
        )
        return fresh

    def _give_back(self, target: Target, connection: _Connection) -> None:
        connection.used_at = time.monotonic()
        if connection.is_usable:
            self._idle[target].append(connection)
        else:
            connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.used_at = 0.0
        self._is_lost = False
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on it."""
        return not self._is_lost and (self._ended is None or self._ended.done())

    async def exchange(self, request: bytes, answer: Answer) -> None:
        """Send a request and read its answer to the end."""
        self._answer, self._rest = answer, b""
        self._is_stream = False
        self._parser = httptools.HttpResponseParser(self)
        self._ended = self._loop.create_future()
        self._transport.write(request)
        await self._ended

    def close(self) -> None:
        self._is_lost = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._ended is None or self._ended.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._end("connection", f"not HTTP: {problem}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._end("connection", str(exc or "closed before the end"))

    # -- the parser's callbacks ------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._answer.headers[key] = text
        if key == "content-type" and text.startswith("text/event-stream"):
            self._is_stream = True

    def on_body(self, data: bytes) -> None:
        self._rest += data
        if self._is_stream:
            *events, self._rest = self._rest.split(b"\n\n")
            for event in events:
                self._read_event(event.strip())

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._answer.status = status
        if not self._parser.should_keep_alive():
            self._is_lost = True
        if status != 200 or not self._is_stream:
            self._read_plain(status)
        elif self._answer.outcome == "no answer":
            is_whole = self._answer.finish_reason is not None
            self._end(*((OK, "") if is_whole else ("cut off", "no finish_reason came")))
        else:
            self._end(self._answer.outcome, self._answer.detail)

    # -- answers ---------------------------------------------------------------------------------

    def _read_event(self, event: bytes) -> None:
        payload = event.removeprefix(_DATA).strip()
        if not event.startswith(_DATA) or payload == _DONE:
            return
        answer = self._answer
        try:
            chunk = _CHUNK.decode(payload)
        except msgspec.MsgspecError as problem:
            answer.outcome, answer.detail = "unreadable", str(problem)
            return
        if chunk.error is not None:
            answer.outcome, answer.detail = f"event {_code(chunk.error)}", _message(chunk.error)
        answer.usage = chunk.usage or answer.usage
        for choice in chunk.choices:
            if choice.has_text and answer.first_token_at is None:
                answer.first_token_at = time.monotonic()
            answer.finish_reason = choice.finish_reason or answer.finish_reason

    def _read_plain(self, status: int) -> None:
        if status == 200:
            self._end("unreadable", "a stream was asked for, none came")
            return
        try:
            said = msgspec.json.decode(self._rest)
        except msgspec.DecodeError:
            said = None
        error = said.get("error", said) if isinstance(said, dict) else None
        code = _code(error)
        self._end(f"{status} {code}" if code != str(status) else code, _message(error))

    def _end(self, outcome: str, detail: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._answer.outcome, self._answer.detail = outcome, detail[:300]
            self._ended.set_result(None)


def _code(error: object) -> str:
    found = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return str(found or "error")


def _message(error: object) -> str:
    return str(error.get("message", "")) if isinstance(error, dict) else str(error or "")


def _request(target: Target, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {target.host}:{target.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + body
