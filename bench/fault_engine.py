"""An engine that says the same for the same prompt, and fails in the ways it is told to.

python -m bench.fault_engine PORT SEED

`POST /fault/MODE` switches to one of `MODES`; then a share of the requests meets that fault. What a
right answer is, its tokens and usage included, follows from the prompt alone (`expected`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import uvloop

MODES = ("well", "never", "stall", "reset", "cut", "429", "500", "503", "garbage", "slow", "event")
SHARE = 0.7  # of the requests meet the fault that is switched on
STEP_S = 0.01
SLOW_STEP_S = 0.15
BATCH = 100  # tokens a step of answers too long to be spoken slowly
LONG = 1000  # tokens
WORDS = (
    "river",
    "signal",
    "Zürich",
    "naïve",
    "日本",
    "🙂 ok",
    'quo"te',
    "back\\slash",
    "line\nend",
    "x",
)
LENGTH = re.compile(r"in (\d+) words")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
ERROR_EVENT = (
    b'data: {"error":{"message":"scripted fault","type":"scripted","code":500,"param":null}}\n\n'
)
GARBAGE = b"\x00\xff\x16\x03\x01 not HTTP at all \r\n\r\n{]"
METRICS = (
    'vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0\n'
    'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0\n'
    'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.0\n'
    "process_start_time_seconds {started}\n"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What every engine says to one prompt."""

    tokens: tuple[str, ...]
    finish: str
    prompt_tokens: int

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.tokens)


def expected(messages: list[dict[str, str]], max_tokens: int | None) -> Expected:
    """Give the answer to a chat that ends with the user's turn."""
    prompt = "\n".join(f"{m['role']}: {m['content']}" for m in messages)
    asked = LENGTH.search(messages[-1]["content"])
    dice = random.Random(hashlib.sha256(prompt.encode()).digest())
    length = int(asked[1]) if asked else dice.randint(4, 30)
    limit = length if max_tokens is None else min(max_tokens, length)
    tokens = tuple(f" {dice.choice(WORDS)}{dice.randint(0, 99)}" for _ in range(limit))
    return Expected(tokens, "length" if limit < length else "stop", len(prompt.split()))


def embedding(text: str) -> list[float]:
    """Give the vector of a text."""
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]


class Engine:
    """Answers on one port."""

    def __init__(self, seed: int) -> None:
        self.mode = "well"
        self.dice = random.Random(seed)
        self.running = 0
        self.started = time.time()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._answer(_Call(reader, writer), head.split()[1], body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the peer left, or the fault was to leave it
        finally:
            writer.close()

    async def _answer(self, call: _Call, path: str, body: bytes) -> None:
        if path.startswith("/fault/"):
            self.mode = path.removeprefix("/fault/")
            call.send_json({"mode": self.mode})
        elif path.startswith("/v1/") and body:
            self.running += 1
            try:
                await self._work(call, path, json.loads(body))
            finally:
                self.running -= 1
        else:
            call.send_page(path, METRICS.format(running=self.running, started=self.started))
        await call.writer.drain()

    async def _work(self, call: _Call, path: str, asked: dict[str, Any]) -> None:
        fault = self.mode if self.dice.random() < SHARE else "well"
        if fault.isdigit():
            error = {"message": "scripted fault", "type": "scripted", "code": int(fault)}
            call.send_json({"error": error}, f"{fault} X")
            return
        if fault == "never":
            await call.peer_left()
        is_early = self.dice.random() < 0.3
        if fault in ("reset", "cut", "garbage") and (is_early or not asked.get("stream")):
            call.break_off(fault)
        await asyncio.sleep(STEP_S)
        if path == "/v1/embeddings":
            call.send_json(_embeddings(asked["input"]))
        elif path == "/v1/completions":  # the first request of a prober
            call.send_json({"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]})
        elif asked.get("stream"):
            await self._stream(call, asked, fault, is_early=is_early)
        else:
            call.send_json(_completion(*_said(asked)))

    async def _stream(
        self, call: _Call, asked: dict[str, Any], fault: str, *, is_early: bool
    ) -> None:
        answer, done = _said(asked)
        left = answer.tokens[done:]
        breaks_at = self.dice.randint(1, max(len(left) - 1, 1)) if fault != "well" else None
        call.writer.write(STREAM_HEAD)
        for at, token in enumerate(left):
            if fault == "event" and at == (0 if is_early else breaks_at):
                call.end_stream(ERROR_EVENT)  # as SGLang does: an error inside a 200, then [DONE]
                return
            if at == breaks_at and fault != "slow":
                await call.break_stream(fault)
            call.send_event({"choices": [_choice({"content": token})]})
            if len(left) < LONG or at % BATCH == 0:
                await call.writer.drain()
                await asyncio.sleep(SLOW_STEP_S if fault == "slow" else STEP_S)
        call.send_event({"choices": [_choice({}, answer.finish)]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            call.send_event({"choices": [], "usage": _usage(answer, done)})
        call.end_stream()


@dataclass(frozen=True, slots=True)
class _Call:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send_json(self, value: object, status: str = "200 OK", kind: str = "json") -> None:
        self._send(json.dumps(value).encode(), status, f"application/{kind}")

    def send_page(self, path: str, metrics: str) -> None:
        pages: dict[str, object] = {
            "/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]},
            "/version": {"version": "0.32.0"},
            "/health": {},
        }
        if path == "/metrics":
            self._send(metrics.encode(), "200 OK", "text/plain; version=0.0.4")
        elif path in pages:
            self.send_json(pages[path])
        else:
            self.send_json({"detail": "Not Found"}, "404 Not Found")

    def _send(self, body: bytes, status: str, kind: str) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    def send_event(self, value: dict[str, Any]) -> None:
        event = {"id": "c", "object": "chat.completion.chunk", "model": "m", **value}
        self.send_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def send_chunk(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self, last: bytes = b"") -> None:
        self.send_chunk(last + b"data: [DONE]\n\n")
        self.writer.write(b"0\r\n\r\n")

    async def peer_left(self) -> None:
        while await self.reader.read(1024):
            pass
        raise ConnectionResetError

    async def break_stream(self, fault: str) -> None:
        await self.writer.drain()
        if fault == "stall":
            await self.peer_left()
        self.break_off(fault)

    def break_off(self, fault: str) -> None:
        """End the connection with RST, FIN, or bytes that are not HTTP."""
        if fault == "garbage":
            self.writer.write(GARBAGE)
        if fault == "reset":
            linger = struct.pack("ii", 1, 0)
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()
        raise ConnectionResetError


def _said(asked: dict[str, Any]) -> tuple[Expected, int]:
    """Give the answer, and how many of its tokens another engine has said already."""
    messages, limit = list(asked["messages"]), asked.get("max_tokens")
    if not asked.get("continue_final_message"):
        return expected(messages, limit), 0
    so_far = messages.pop()["content"]
    whole = expected(messages, None)
    done, length = 0, 0
    while length < len(so_far):
        length += len(whole.tokens[done])
        done += 1
    if not whole.text.startswith(so_far) or length != len(so_far):
        return Expected((" WRONG SEAM",), "stop", 0), 0
    return expected(messages, None if limit is None else limit + done), done


def _choice(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _usage(answer: Expected, done: int = 0) -> dict[str, int]:
    prompt, output = answer.prompt_tokens + done, len(answer.tokens) - done
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }


def _completion(answer: Expected, done: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(answer.tokens[done:])}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish}
    return {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": _usage(answer, done),
    }


def _embeddings(text: str) -> dict[str, Any]:
    count = len(text.split())
    return {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding(text)}],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


async def serve(port: int, seed: int) -> None:
    """Serve until killed."""
    engine = Engine(seed)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
