"""An engine on a real socket whose streams go on only when the test says so."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter


def event(content: dict) -> bytes:
    data = b"data: " + json.dumps(content).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    return event(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
        }
    )


DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class SlowEngine:
    """Serves model `m`; a stream says one token, waits for `go`, then ends well."""

    def __init__(self, host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.tls = tls
        self.go = asyncio.Event()
        self.running = 0
        self.calls: Counter[str] = Counter()
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * bool(self.tls)}://{host}:{self.port}"

    async def start(self) -> SlowEngine:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self.go.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = await reader.readexactly(_length(head))
                await self._answer(head.split()[1], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.calls[path] += 1
        if path == "/v1/models":
            _plain(writer, {"data": [{"id": "m", "owned_by": "vllm"}]})
        elif path == "/health":
            _plain(writer, {})
        elif path.startswith("/v1/") and json.loads(body).get("stream"):
            await self._stream(writer)
        elif path.startswith("/v1/"):
            _plain(
                writer,
                {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": {"total_tokens": 2}},
            )
        else:
            _plain(writer, {"detail": "Not Found"}, status="404 Not Found")

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        self.running += 1
        try:
            writer.write(STREAM_HEAD + chunk("first"))
            await self.go.wait()
            writer.write(chunk(" last", "stop") + DONE)
        finally:
            self.running -= 1


def _length(head: str) -> int:
    lines = [line.partition(":") for line in head.lower().splitlines()]
    return next((int(value) for name, _, value in lines if name == "content-length"), 0)


def _plain(writer: asyncio.StreamWriter, content: dict, status: str = "200 OK") -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
