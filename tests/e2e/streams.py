"""Clients that stream without a pause, and remember every one of their failures."""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType

DONE = b"data: [DONE]"


class Streams:
    """A number of clients on a thread of their own; a context that ends when their streams end."""

    def __init__(self, port: int, key: str, model: str, *, clients: int, tokens: int = 100) -> None:
        self.port = port
        self.clients = clients
        self.running = 0
        self.finished = 0
        self.failures: list[str] = []
        self._stopping = threading.Event()
        body = json.dumps(
            {
                "model": model,
                "stream": True,
                "ignore_eos": True,
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": "Tell a long story."}],
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._request = head.encode() + body
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Streams:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.clients):
                tasks.create_task(self._one_client())

    async def _one_client(self) -> None:
        while not self._stopping.is_set():
            self.running += 1
            try:
                answer = await self._one_stream()
            except OSError as error:
                answer = str(error).encode()
            finally:
                self.running -= 1
            if answer.startswith(b"HTTP/1.1 200") and DONE in answer[-200:]:
                self.finished += 1
            else:
                self.failures.append(answer[:200].decode() + " … " + answer[-200:].decode())

    async def _one_stream(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self._request)
            return await reader.read()
        finally:
            writer.close()
