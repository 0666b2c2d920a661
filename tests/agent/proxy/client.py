"""A client that shows every byte: raw requests in, parsed answers out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

LIMIT_S = 15.0
OPEN: list[RawClient] = []


@dataclass
class Reply:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool = False  # the connection ended before the answer did

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json()["error"]

    @property
    def events(self) -> list[str]:
        """The data of each event, whatever its line ends."""
        text = self.body.decode()
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        found = []
        for block in text.split("\n\n"):
            lines = [
                line[5:].removeprefix(" ") for line in block.split("\n") if line[:5] == "data:"
            ]
            if lines:
                found.append("\n".join(lines))
        return found

    @property
    def text(self) -> str:
        """All content of a chat stream, joined."""
        out = ""
        for data in self.events:
            if data != "[DONE]":
                for choice in json.loads(data).get("choices") or []:
                    out += (choice.get("delta") or {}).get("content") or ""
        return out


def chat(**changes: Any) -> dict[str, Any]:
    """Give a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **changes}


class RawClient:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> RawClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024))
        OPEN.append(client)
        return client

    @staticmethod
    async def close_all() -> None:
        """Close every client of this test."""
        for client in OPEN:
            client.writer.transport.abort()
        for client in OPEN:
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()
        OPEN.clear()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: Any, *, path: str = "/v1/chat/completions", **headers: str) -> None:
        """Send a POST with a JSON body; header names may use underscores."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "proxy", "content-type": "application/json"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines["content-length"] = str(len(raw))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value != "-")
        self.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + raw)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response head."""
        async with asyncio.timeout(LIMIT_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        names = [name.lower() for name, _ in pairs]
        assert len(set(names)) == len(names), f"a header came twice: {names}"
        return int(first.split(" ")[1]), {n.lower(): v for n, v in pairs}

    async def chunk(self) -> bytes:
        """Read one HTTP chunk; b"" is the last."""
        async with asyncio.timeout(LIMIT_S):
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self, *, of_head: bool = False) -> Reply:
        """Read a whole answer."""
        status, headers = await self.head()
        body = b""
        if of_head or status in (204, 304):
            return Reply(status, headers, b"")
        async with asyncio.timeout(LIMIT_S):
            try:
                if headers.get("transfer-encoding") == "chunked":
                    while chunk := await self.chunk():
                        body += chunk
                elif "content-length" in headers:
                    body = await self.reader.readexactly(int(headers["content-length"]))
                else:
                    body = await self.reader.read()
            except (asyncio.IncompleteReadError, ConnectionError):
                return Reply(status, headers, body, is_cut=True)
        return Reply(status, headers, body)

    async def ended(self) -> bool:
        """Wait for the other side's end; true if nothing more came."""
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        """Leave with a FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with an RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def ask(port: int, body: Any, **options: Any) -> Reply:
    """Send one POST on a connection of its own."""
    client = await RawClient.open(port)
    client.post(body, **options)
    try:
        return await client.reply()
    finally:
        client.close()


async def get(port: int, path: str, *, method: str = "GET", **headers: str) -> Reply:
    """Send one request without a body."""
    client = await RawClient.open(port)
    lines = "".join(f"{n.replace('_', '-')}: {v}\r\n" for n, v in {"host": "p", **headers}.items())
    client.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
    try:
        return await client.reply(of_head=method == "HEAD")
    finally:
        client.close()
