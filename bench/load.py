"""The load client: keep-alive connections that send the next request when the last is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop

from bench.machine import KEY, MODEL


@dataclass(slots=True)
class Result:
    """What a load saw."""

    answered: int = 0
    events: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        """Give a percentile of the latencies."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def chat(*, stream: bool, tokens: int = 100, prompt_bytes: int = 200) -> bytes:
    """Give a chat request as it goes over the wire."""
    text = ("tell me about rivers " * (prompt_bytes // 21 + 1))[:prompt_bytes]
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
    """One connection in a closed loop until `until_s` or for `rounds` requests."""

    def __init__(self, request: bytes, result: Result, until_s: float, rounds: int) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._result = result
        self._until_s = until_s
        self._left = rounds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport: Any = transport
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; early is a problem."""
        if not self.ended.done():
            self._result.problems["connection lost"] += 1
            self.ended.set_result(None)

    def on_body(self, data: bytes) -> None:
        """Count events."""
        self._result.events += data.count(b"\n\n")

    def on_message_complete(self) -> None:
        """Book the answer and send the next request."""
        now = time.perf_counter()
        status = self._parser.get_status_code()
        if status == 200:
            self._result.answered += 1
            self._result.latencies_s.append(now - self._sent_at)
        else:
            self._result.problems[f"status {status}"] += 1
        self._left -= 1
        if self._left > 0 and now < self._until_s:
            self._send()
        else:
            self.ended.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)


def requests(port: int, request: bytes, *, connections: int, seconds: float) -> Result:
    """Send requests for some seconds."""
    return uvloop.run(_load(port, request, connections, seconds, 10**9))


def rounds(port: int, request: bytes, *, connections: int, each: int) -> Result:
    """Send a number of requests on each connection."""
    return uvloop.run(_load(port, request, connections, 600.0, each))


async def _load(port: int, request: bytes, connections: int, seconds: float, each: int) -> Result:
    result = Result()
    until_s = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(
            lambda: Client(request, result, until_s, each), "127.0.0.1", port
        )
        clients.append(client)
    async with asyncio.timeout(seconds + 120):
        await asyncio.gather(*(client.ended for client in clients))
    return result
