"""Clients that ask well, and some that break off, dribble, pipeline or talk rubbish."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import httpx

PATHS: Final = {
    "/v1/chat/completions": 20,
    "/v1/completions": 2,
    "/v1/embeddings": 2,
    "/v1/models": 1,
    "/v1/nothing": 1,
}
# What ARCHITECTURE promises; 400 is the engine's own, passed on.
PROMISED: Final = frozenset({200, 400, 404, 405, 429, 502, 503, 504})
PATIENCE_S: Final = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """All who ask one agent."""

    def __init__(self, chance: random.Random, port: int) -> None:
        self.chance = chance
        self.port = port
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            trust_env=False,
            timeout=PATIENCE_S,
            limits=httpx.Limits(max_connections=None),
        )

    async def one(self) -> None:
        """Ask once, in one way or another."""
        if self.chance.random() < 0.6:
            self.answers[await self._ask()] += 1
            return
        name = self.chance.choice(list(RUDE))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await RUDE[name](self, (reader, writer))
        except ConnectionError:
            self.answers[f"{name}, cut"] += 1
        except TimeoutError:
            self.faults.append(f"a client that {name} waited for ever")
        else:
            self.answers[name] += 1
        finally:
            writer.close()

    async def _ask(self) -> str:
        path, body, key = self.request()
        headers = {
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "x-session-id": f"s{self.chance.randrange(20)}",
        }
        try:
            answer = await self.http.post(path, content=body, headers=headers)
        except httpx.TimeoutException:
            self.faults.append("no answer within the patience of a client")
            return "waited for ever"
        except httpx.HTTPError as error:
            return type(error).__name__  # of a broken stream, or a killed worker
        if answer.status_code not in PROMISED:
            self.faults.append(f"status {answer.status_code}")
        if answer.status_code >= 400 and "error" not in answer.json():
            self.faults.append(f"{answer.status_code} without an error: {answer.text[:200]}")
        if "event-stream" in answer.headers.get("content-type", ""):
            return self._ended(answer.text)
        return str(answer.status_code)

    def _ended(self, text: str) -> str:
        if text.rstrip().endswith("[DONE]"):
            return "200, whole"
        if '"error"' not in text:
            self.faults.append(f"a stream without end or error: ...{text[-80:]!r}")
        return "200, error"

    def request(self) -> tuple[str, bytes, str]:
        """Give path, body and key of a request, some of it strange."""
        chance = self.chance
        path = chance.choices(list(PATHS), list(PATHS.values()))[0]
        text = "hello " * chance.choice([1, 50, 3000]) + str(chance.random())
        body = {
            "model": chance.choice(["m", "m", "alias", "small", "auto", "nope"]),
            "stream": chance.random() < 0.7,
        }
        if path == "/v1/embeddings":
            body |= {"input": text, "stream": False}
        elif path == "/v1/completions":
            body |= {"prompt": text}
        else:
            body |= {"messages": [{"role": "user", "content": text}]}
        if chance.random() < 0.3:
            body |= chance.choice(STRANGE)
        return path, json.dumps(body).encode(), chance.choice(["sk-1", "sk-1", "sk-2"])

    def bytes_of_request(self) -> bytes:
        path, body, key = self.request()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


STRANGE: Final = (
    {"logprobs": True},
    {"max_tokens": 0},
    {"max_tokens": 10**12},
    {"max_tokens": "many"},
    {"n": 2},
    {"user": "u1"},
    {"stream_options": None},
    {"stream_options": {"include_usage": True}},
    {"stream_options": 5},
)


async def leaves(clients: Clients, streams: Streams) -> None:
    streams[1].write(clients.bytes_of_request())
    await asyncio.sleep(clients.chance.random() * 0.1)
    streams[1].transport.abort()


async def leaves_early(clients: Clients, streams: Streams) -> None:
    request = clients.bytes_of_request()
    streams[1].write(request[: len(request) // 2])
    await asyncio.sleep(clients.chance.random() * 0.05)
    streams[1].transport.abort()


async def closes_half(clients: Clients, streams: Streams) -> None:
    streams[1].write(clients.bytes_of_request())
    streams[1].write_eof()
    await streams[0].read()


async def pipelines(clients: Clients, streams: Streams) -> None:
    streams[1].write(clients.bytes_of_request() + clients.bytes_of_request())
    await streams[0].read(100_000)


async def dribbles(clients: Clients, streams: Streams) -> None:
    request = clients.bytes_of_request()
    for number in request[:600]:
        streams[1].write(bytes([number]))
    streams[1].write(request[600:])
    await streams[0].read(500)


async def reads_slowly(clients: Clients, streams: Streams) -> None:
    streams[1].write(clients.bytes_of_request())
    await asyncio.sleep(0.3)
    await streams[0].read(300)


async def talks_rubbish(clients: Clients, streams: Streams) -> None:
    streams[1].write(os.urandom(300) + b"\r\n\r\n")
    await streams[0].read(500)


RUDE: Final[dict[str, Callable[[Clients, Streams], Awaitable[None]]]] = {
    "leaves": leaves,
    "leaves early": leaves_early,
    "closes half": closes_half,
    "pipelines": pipelines,
    "dribbles": dribbles,
    "reads slowly": reads_slowly,
    "talks rubbish": talks_rubbish,
}
