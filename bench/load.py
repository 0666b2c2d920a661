"""The load client: keep-alive connections that send the next request when the last is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httptools
import uvloop

from bench.machine import KEY, MODEL

ANSWER_LIMIT_S = 120.0
SAMPLE_PAUSE_S = 0.25
WORD = b'" word"'
DONE = b"data: [DONE]"


class Target(Protocol):
    """What a load is put on, as far as the kernel tells of it."""

    def cpu_s(self) -> float:
        """Give the CPU seconds used so far."""
        ...

    def memory_mib(self) -> float:
        """Give the resident memory now."""
        ...


@dataclass(slots=True)
class Result:
    """What a load saw, and what its target used meanwhile."""

    answered: int = 0
    tokens: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)  # of the body
    cpu_s: float = 0.0
    memory_mib: float = 0.0


def percentile_ms(values_s: list[float], share: float) -> float | None:
    """Give a percentile in ms; `None` of nothing."""
    ordered = sorted(values_s)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a target."""

    request: bytes
    connections: int
    seconds: float
    tokens: int | None = None  # that each stream must have; None: plain answers
    warm_up: bytes | None = None  # sent once on each connection before anything is measured
    spread_s: float = 0.0  # over which the connections begin


def chat(
    *, stream: bool, tokens: int = 100, prompt_bytes: int = 200, step_s: float | None = None
) -> bytes:
    """Give a chat request as it goes over the wire; `step_s` is the engine's time for a token."""
    text = ("tell me about rivers " * (prompt_bytes // 21 + 1))[:prompt_bytes]
    if step_s is not None:
        text = f"a token every {step_s * 1000:.0f} ms: {text}"
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": text},
    ]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    data = json.dumps(body, separators=(",", ":")).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (KEY.encode(), len(data), data)
    )


class Client(asyncio.Protocol):
    """One connection in a closed loop."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._ended: asyncio.Future[None] | None = None
        self._tokens: int | None = None
        self._until_s = 0.0
        self._body: list[bytes] = []
        self._first_at = 0.0
        self._is_lost = False

    async def ask(self, request: bytes, *, until_s: float, tokens: int | None) -> None:
        """Send a request, again and again until `until_s`; at least once."""
        if self._is_lost:
            return
        self._request, self._until_s, self._tokens = request, until_s, tokens
        self._ended = asyncio.get_running_loop().create_future()
        self._send()
        await self._ended

    def close(self) -> None:
        """Close the connection."""
        self._is_lost = True
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport: Any = transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._result.problems["an answer that is not HTTP"] += 1
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; early is a problem."""
        if not self._is_lost:
            self._result.problems["connection lost"] += 1
        self._is_lost = True
        self._end()

    def on_body(self, data: bytes) -> None:
        """Keep what came."""
        if not self._body:
            self._first_at = time.perf_counter()
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Book the answer and send the next request."""
        now = time.perf_counter()
        self._book(now)
        self._body.clear()
        if not self._parser.should_keep_alive():
            self._transport.close()
        elif now < self._until_s:
            self._send()
        else:
            self._end()

    def _book(self, now: float) -> None:
        result = self._result
        status = self._parser.get_status_code()
        if status != 200:
            result.problems[f"status {status}"] += 1
            return
        if self._tokens is not None:
            body = b"".join(self._body)
            tokens = body.count(WORD) + 1  # the last is a full stop
            if tokens != self._tokens or DONE not in body:
                result.problems["a stream that is not whole"] += 1
                return
            result.tokens += tokens
        result.answered += 1
        result.latencies_s.append(now - self._sent_at)
        result.first_byte_s.append((self._first_at or now) - self._sent_at)

    def _send(self) -> None:
        self._first_at = 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def run(load: Load, ports: Sequence[int], process: Target | None) -> Result:
    """Put a load on a target; the connections go to its ports in turn."""
    return uvloop.run(_run(load, ports, process))


async def _run(load: Load, ports: Sequence[int], process: Target | None) -> Result:
    warming = Result()
    clients = await _connected(load.connections, ports, warming)
    try:
        if load.warm_up is not None:
            asked = [c.ask(load.warm_up, until_s=0.0, tokens=None) for c in clients]
            await _within(asyncio.gather(*asked), warming)
        result = Result(problems=warming.problems)
        for client in clients:
            client._result = result
        await _measure(load, clients, process, result)
    finally:
        for client in clients:
            client.close()
    return result


async def _connected(count: int, ports: Sequence[int], result: Result) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients = []
    for i in range(count):
        try:
            _, client = await loop.create_connection(
                lambda: Client(result), "127.0.0.1", ports[i % len(ports)]
            )
        except OSError as error:
            result.problems[f"cannot connect: {error.strerror or error}"] += 1
        else:
            clients.append(client)
    return clients


async def _measure(
    load: Load, clients: list[Client], process: Target | None, result: Result
) -> None:
    sampler = asyncio.ensure_future(_sample_memory(process, result))
    before = process.cpu_s() if process is not None else 0.0
    until_s = time.perf_counter() + load.spread_s + load.seconds

    async def begin(i: int, client: Client) -> None:
        if load.spread_s:
            await asyncio.sleep(load.spread_s * i / len(clients))
        await client.ask(load.request, until_s=until_s, tokens=load.tokens)

    await _within(asyncio.gather(*(begin(i, c) for i, c in enumerate(clients))), result)
    if process is not None:
        result.cpu_s = process.cpu_s() - before
    sampler.cancel()


async def _within(asked: asyncio.Future[list[None]], result: Result) -> None:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await asked
    except TimeoutError:
        result.problems[f"unfinished after {ANSWER_LIMIT_S:.0f} s"] += 1


async def _sample_memory(process: Target | None, result: Result) -> None:
    while process is not None:
        result.memory_mib = max(result.memory_mib, process.memory_mib())
        await asyncio.sleep(SAMPLE_PAUSE_S)
