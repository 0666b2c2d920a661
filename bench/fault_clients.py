"""Clients good and bad: they ask, leave with FIN or RST, dribble their request, stall reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from bench.fault_engine import Expected, expected
from bench.fault_judge import Asked, Reply, Verdict, judge

# What a client does, and its share of the traffic.
WAYS = {
    "stream": 34, "plain": 18, "embedding": 10, "multi-turn": 12, "leave FIN": 6, "leave RST": 6,
    "leave in its request": 4, "dribble": 6, "stall reading": 4,
}  # fmt: skip
ANSWER_LIMIT_S = 40.0  # far above all limits of the agent together
LEAVE_LIMIT_S = 15.0
TURNS = 3
STALL_S = 3.0
STALLED_WORDS = 5000
DRIBBLE_PIECES = 12
DRIBBLE_PAUSE_S = 0.08
SMALL_BUFFER_BYTES = 4096


class Broken(Exception):
    """The answer cannot be read as HTTP; the message says where."""


@dataclass
class Connection:
    """One connection to the agent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    came: bytearray = field(default_factory=bytearray)  # of the answer that is being read

    def reset(self) -> None:
        """Leave with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def reply(self) -> Reply:
        """Read one answer to its end, or to where it was cut off."""
        self.came.clear()
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            raise Broken("no answer, the connection was closed") from problem
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in _split(lines)}
        self.came += head.encode("latin-1")
        body = bytearray()
        try:
            await self._read_body(headers, body)
            is_whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            is_whole = False
        return Reply(int(first.split()[1]), headers, bytes(body), is_whole)

    async def _read_body(self, headers: dict[str, str], body: bytearray) -> None:
        if headers.get("transfer-encoding") != "chunked":
            body += await self.reader.readexactly(int(headers["content-length"]))
            return
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            chunk = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            body += chunk[:-2]
            self.came += chunk[:-2]


def _split(lines: list[str]) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in lines]


@dataclass
class Clients:
    """All clients of one agent, and what became of their requests."""

    port: int
    dice: random.Random
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, why)
    by_way: Counter[tuple[str, str]] = field(default_factory=Counter)  # (way, kind)
    wrong: list[str] = field(default_factory=list)
    _asked: int = 0

    async def act(self) -> None:
        """Be one client, chosen by lot."""
        way = self.dice.choices(list(WAYS), list(WAYS.values()))[0]
        try:
            async with self._connected(small=way == "stall reading") as connection:
                await self._ask(way, connection)
        except OSError as problem:
            self._note(way, "(no request)", Verdict("wrong", f"cannot connect: {problem}"))

    async def _ask(self, way: str, connection: Connection) -> None:
        match way:
            case "multi-turn":
                await self._converse(connection)
            case "leave FIN" | "leave RST" | "leave in its request":
                await self._leave(way, connection)
            case _:
                await self._one(way, connection)

    async def _one(self, way: str, connection: Connection) -> None:
        kind = way if way in ("plain", "embedding") else "stream"
        words = STALLED_WORDS if way == "stall reading" else None
        asked, request = self._embedding() if kind == "embedding" else self._chat(kind, words)
        await self._send(connection, request, pieces=DRIBBLE_PIECES if way == "dribble" else 1)
        if way == "stall reading":
            await asyncio.sleep(STALL_S)
        await self._judge(way, asked, connection)

    async def _converse(self, connection: Connection) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": self._question(turn)})
            kind = self.dice.choice(("stream", "plain"))
            asked, request = self._chat(kind, None, messages)
            await self._send(connection, request)
            verdict = await self._judge("multi-turn", asked, connection)
            if verdict.kind != "right" or asked.expected is None:
                return
            messages.append({"role": "assistant", "content": asked.expected.text})

    async def _leave(self, way: str, connection: Connection) -> None:
        asked, request = self._chat("stream", 60)
        is_early = way == "leave in its request"
        await self._send(connection, request[: len(request) // 2] if is_early else request)
        if not is_early:
            with contextlib.suppress(TimeoutError, ConnectionError):  # leaves in any case
                async with asyncio.timeout(self.dice.uniform(0.0, 0.5)):
                    await connection.reader.readexactly(self.dice.randint(1, 4000))
        verdict = None
        if way == "leave RST":
            connection.reset()
        else:
            verdict = await _finish(connection)
        self._note(way, asked.request_id, verdict)

    # -- requests ----------------------------------------------------------------------------------

    def _question(self, turn: int) -> str:
        return f"Question {self.dice.randrange(10**9)}, turn {turn}: tell me more, schön und klar?"

    def _chat(
        self, kind: str, words: int | None, messages: list[dict[str, str]] | None = None
    ) -> tuple[Asked, bytes]:
        if messages is None:
            length = "" if words is None else f" in {words} words"
            messages = [{"role": "user", "content": self._question(0) + length}]
        limit = self.dice.choice((None, None, 5, 12)) if words is None else None
        wants_usage = kind == "stream" and self.dice.random() < 0.5
        body: dict[str, Any] = {"model": "m", "messages": messages, "temperature": 0}
        if limit is not None:
            body["max_tokens"] = limit
        if kind == "stream":
            body["stream"] = True
        if wants_usage:
            body["stream_options"] = {"include_usage": True}
        right: Expected = expected(messages, limit)
        request_id = self._next_id()
        asked = Asked(
            request_id,
            "stream" if kind == "stream" else "plain",
            expected=right,
            wants_usage=wants_usage,
        )
        return asked, _request("/v1/chat/completions", request_id, body)

    def _embedding(self) -> tuple[Asked, bytes]:
        text, request_id = self._question(0), self._next_id()
        asked = Asked(request_id, "embedding", text=text)
        return asked, _request("/v1/embeddings", request_id, {"model": "m", "input": text})

    def _next_id(self) -> str:
        self._asked += 1
        return f"faults-{self._asked}"

    # -- the wire ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _connected(self, *, small: bool) -> AsyncIterator[Connection]:
        sock = socket.socket()
        sock.setblocking(False)
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(sock=sock, limit=SMALL_BUFFER_BYTES)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    async def _send(self, connection: Connection, request: bytes, *, pieces: int = 1) -> None:
        size = -(-len(request) // pieces)
        for start in range(0, len(request), size):
            connection.writer.write(request[start : start + size])
            if pieces > 1:
                await asyncio.sleep(DRIBBLE_PAUSE_S)

    async def _judge(self, way: str, asked: Asked, connection: Connection) -> Verdict:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                verdict = judge(asked, await connection.reply())
        except TimeoutError:
            came = bytes(connection.came[-300:]) or b"nothing"
            why = f"no end of its {asked.kind} within {ANSWER_LIMIT_S:.0f} s, came: {came!r}"
            verdict = Verdict("wrong", why)
        except (Broken, ValueError, LookupError) as problem:
            verdict = Verdict("wrong", f"not HTTP: {problem!r}")
        self._note(way, asked.request_id, verdict)
        return verdict

    def _note(self, way: str, request_id: str, verdict: Verdict | None) -> None:
        kind, why = (verdict.kind, verdict.why) if verdict is not None else ("left", "")
        self.by_way[way, kind] += 1
        if kind == "wrong":
            self.wrong.append(f"{request_id} ({way}): {why}")
        else:
            self.verdicts[kind, why] += 1


async def _finish(connection: Connection) -> Verdict | None:
    """Send a FIN and no more; the agent has to let go too."""
    try:
        async with asyncio.timeout(LEAVE_LIMIT_S):
            connection.writer.write_eof()
            while await connection.reader.read(65536):
                pass
    except ConnectionError:
        return None  # let go of the hard way
    except TimeoutError:
        return Verdict("wrong", f"kept open {LEAVE_LIMIT_S:.0f} s after its client's FIN")
    return None


def _request(path: str, request_id: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body, ensure_ascii=False).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-type: application/json\r\n"
        f"x-request-id: {request_id}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
