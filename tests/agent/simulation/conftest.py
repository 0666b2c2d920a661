"""Simulated engines on real sockets, ten times as fast as an A100."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer

StartEngine = Callable[..., Awaitable["RunningEngine"]]


@dataclasses.dataclass
class RunningEngine:
    server: EngineServer
    client: httpx.AsyncClient
    writers: list[asyncio.StreamWriter] = dataclasses.field(default_factory=list)

    async def chat(self, text: str = "hello", **fields: object) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def switch(self, **faults: object) -> httpx.Response:
        return await self.client.post("/simulate/faults", json=faults)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self.writers.append(writer)
        return reader, writer

    async def open_stream(
        self, **fields: object
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a long stream on a connection of its own and read its head."""
        reader, writer = await self.connect()
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        writer.write(post("/v1/chat/completions", body | {"ignore_eos": True} | fields))
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    async def metrics(self) -> dict[str, float]:
        """Give the samples of the metrics page by name and labels."""
        page = (await self.client.get("/metrics")).text
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    async def metric(self, name: str) -> float:
        samples = await self.metrics()
        return sum(value for key, value in samples.items() if key.split("{")[0] == f"vllm:{name}")


def post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(data),
        data,
    )


def events(text: str) -> list[dict[str, Any]]:
    """Give the JSON events of a stream, without its [DONE]."""
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def said(text: str) -> str:
    """Give the words of a streamed chat."""
    return "".join(
        choice["delta"].get("content", "") for e in events(text) for choice in e["choices"]
    )


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    running: list[RunningEngine] = []

    async def start(
        *, speed: float = 10.0, embedding: bool = False, api_key: str = "", **figures: Any
    ) -> RunningEngine:
        profile = dataclasses.replace(A100_QWEN_7B.faster(speed), **figures)
        limits = Limits(
            model="m", longest_request_tokens=profile.longest_request_tokens, answer_tokens=40
        )
        server = EngineServer(profile, limits, api_key=api_key, embedding=embedding)
        await server.start()
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False)
        running.append(RunningEngine(server, client))
        return running[-1]

    yield start
    for engine in running:
        await engine.client.aclose()
        for writer in engine.writers:
            writer.close()
        await engine.server.stop(0.01)


@pytest.fixture
async def engine(start_engine: StartEngine) -> RunningEngine:
    return await start_engine()
