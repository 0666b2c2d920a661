"""An engine that fails in every way that engines were seen to fail, as chance has it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from tests.agent.slow_engine import DONE, STREAM_HEAD, SlowEngine, chunk, event

MODELS: Final = {"data": [{"id": "m", "owned_by": "vllm"}, {"id": "small"}]}
ANSWER: Final = {
    "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
JSON: Final = "content-type: application/json\r\n"
# Whether the connection can be used again.
Fault = Callable[[asyncio.StreamWriter], Awaitable[bool]]


class ChaosEngine(SlowEngine):
    """Answers well, but for `faulty` of the requests."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.faulty = 0.0
        self.met: Counter[str] = Counter()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.calls[path] += 1
        if not path.startswith("/v1/") or path == "/v1/models":
            respond(writer, json.dumps(MODELS if path == "/v1/models" else {}).encode())
            return
        self.running += 1
        try:
            await self._serve_one(json.loads(body), writer)
        finally:
            self.running -= 1

    async def _serve_one(self, asked: dict, writer: asyncio.StreamWriter) -> None:
        if self.chance.random() < self.faulty:
            name = self.chance.choice(list(FAULTS))
            self.met[name] += 1
            if not await FAULTS[name](writer):
                raise ConnectionAbortedError
        elif asked.get("stream"):
            await self._stream(writer)
        else:
            await asyncio.sleep(self.chance.random() * 0.05)
            respond(writer, json.dumps(ANSWER).encode())

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for number in range(self.chance.choice([1, 3, 20])):
            writer.write(chunk(f"t{number} "))
            await writer.drain()
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.random() * 0.02)
        writer.write(chunk("x", "stop") + DONE)


def respond(writer: asyncio.StreamWriter, body: bytes, status: int = 200, more: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\n{JSON}{more}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def status(code: int, more: str = "") -> Fault:
    """Answer with a status of failure."""

    async def fault(writer: asyncio.StreamWriter) -> bool:
        respond(writer, b'{"error":{"message":"x"}}', code, more)
        return True

    return fault


def ends(*parts: bytes, after_s: float = 0.01) -> Fault:
    """Send something, then close."""

    async def fault(writer: asyncio.StreamWriter) -> bool:
        for part in parts:
            writer.write(part)
        await writer.drain()
        await asyncio.sleep(after_s)
        return False

    return fault


async def resets(writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def byte_by_byte(writer: asyncio.StreamWriter) -> bool:
    for number in STREAM_HEAD + chunk("hi") + chunk("x", "stop") + DONE:
        writer.write(bytes([number]))
        await asyncio.sleep(0)
    return True


async def says_error(writer: asyncio.StreamWriter) -> bool:
    told = {"error": {"message": "out of memory", "code": 500}}
    writer.write(STREAM_HEAD + chunk("hi") + event(told) + DONE)
    return True


BEGUN: Final = STREAM_HEAD + chunk("hi")
FAULTS: Final[dict[str, Fault]] = {
    "500": status(500),
    "503": status(503),
    "400": status(400),
    "429": status(429, "retry-after: 1\r\n"),
    "reset": resets,
    "silent": ends(after_s=4.0),
    "stalls": ends(BEGUN, after_s=3.0),
    "breaks off": ends(BEGUN),
    "half a head": ends(b"HTTP/1.1 200 OK\r\ncontent-type: text/ev"),
    "endless head": ends(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n"),
    "no HTTP": ends(bytes(range(200))),
    "no length": ends(f"HTTP/1.1 200 OK\r\n{JSON}\r\n{json.dumps(ANSWER)}".encode()),
    "HTTP/1.0": ends(f"HTTP/1.0 200 OK\r\n{JSON}\r\n{{}}".encode()),
    "no chunk": ends(BEGUN + b"zz\r\nfoo\r\n"),
    "closes after": ends(f"HTTP/1.1 200 OK\r\n{JSON}content-length: 2\r\n\r\n{{}}".encode()),
    "byte by byte": byte_by_byte,
    "error event": says_error,
}
