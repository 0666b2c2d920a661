"""An engine's publisher of KV events: numbered messages on real ZMQ sockets, kept for replay."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = b"\xff" * 8


def stored(hashes: list[int], *, parent: int | None = None, size: int = 16) -> dict[str, Any]:
    """An event of vLLM 0.32; the tokens of a block are its hash's last digit."""
    tokens = [block % 10 for block in hashes for _ in range(size)]
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
            "token_ids": tokens, "block_size": size, "lora_id": None, "medium": "GPU",
            "lora_name": None, "extra_keys": [None] * len(hashes), "group_idx": 0}  # fmt: skip


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


CLEARED = {"type": "AllBlocksCleared"}


class KvPublisher:
    """One engine's events; `start` again is another process on the same ports."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.port = self.replay_port = 0
        self.kept: list[tuple[int, bytes]] = []
        self.number = 0
        self.asked: list[int] = []  # the numbers from which replays were asked for
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> KvPublisher:
        """Bind both sockets."""
        self.number, self.kept = 0, []
        self.events = self.context.socket(zmq.PUB)
        self.replays = self.context.socket(zmq.ROUTER)
        self.port = await self._bind(self.events, self.port)
        self.replay_port = await self._bind(self.replays, self.replay_port)
        self._task = asyncio.create_task(self._answer())
        return self

    async def publish(self, *events: dict[str, Any], lose: bool = False) -> None:
        """Send one message, or keep it for replay only."""
        payload = msgspec.msgpack.encode([time.time(), list(events), 0])
        self.kept.append((self.number, payload))
        if not lose:
            await self.events.send_multipart([b"kv", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    async def stop(self) -> None:
        """Close both sockets, as a process that ends does."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.events.close(linger=0)
        self.replays.close(linger=0)

    def end(self) -> None:
        """Free what all processes share."""
        self.context.destroy(linger=0)

    async def _bind(self, socket: Any, port: int) -> int:
        if not port:
            return int(socket.bind_to_random_port("tcp://127.0.0.1"))
        async with asyncio.timeout(60):
            while True:  # libzmq closes in its own time
                try:
                    socket.bind(f"tcp://127.0.0.1:{port}")
                    return port
                except zmq.ZMQError:
                    await asyncio.sleep(0.01)

    async def _answer(self) -> None:
        while True:
            who, _, start = await self.replays.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number, payload in list(self.kept):
                if number >= first:
                    frames = [who, b"", b"kv", number.to_bytes(8, "big"), payload]
                    await self.replays.send_multipart(frames)
            await self.replays.send_multipart([who, b"", b"", END, b""])
