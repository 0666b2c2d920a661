"""A scripted engine that takes LoRA adapters in and out as vLLM does, on a real socket.

It can refuse, forget everything as a restarted one does, and hold streams until they are let go.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.fakes.engine import DONE, Call, FakeEngine, completion, event

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def error(status: int, message: str, kind: str = "NotFoundError") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


class LoraEngine:
    """A small vLLM with model `m`."""

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.refuses: dict[str, tuple[int, str]] = {}  # loads, by adapter; "" = all
        self.made: list[tuple[str, str]] = []  # calls that change it: path, adapter
        self.asked: list[str] = []  # the `model` of each completion
        self.unknown: list[str] = []  # those it did not have
        self.gate: asyncio.Event | None = None  # streams wait for it after their first word
        self.running: list[str] = []
        self.started_at = time.time()
        self.server: FakeEngine | None = None

    async def start(self) -> LoraEngine:
        self.server = await FakeEngine.start(self._answer)
        return self

    async def stop(self) -> None:
        await self.server.stop()

    @property
    def url(self) -> str:
        return self.server.url

    def restart(self) -> None:
        """Be another process at the same address, with nothing loaded."""
        self.loaded.clear()
        self.started_at += 10

    def made_for(self, name: str) -> list[str]:
        """Give the paths of the calls about one adapter."""
        return [path for path, about in self.made if about == name]

    async def _answer(self, call: Call) -> None:
        path = call.target.partition("?")[0]
        if path == "/v1/models":
            await call.answer(200, {"object": "list", "data": self._models()})
        elif path == "/metrics":
            await self._metrics(call)
        elif path == LOAD:
            await self._load(call, call.json())
        elif path == UNLOAD:
            await self._unload(call, call.json()["lora_name"])
        elif path.startswith("/v1/"):
            await self._complete(call, call.json())
        else:
            known = path == "/health"
            await call.answer(200 if known else 404, {} if known else {"detail": "Not Found"})

    def _models(self) -> list[dict[str, Any]]:
        base = {"id": "m", "owned_by": "vllm", "root": "/m", "parent": None}
        adapters = [
            {"id": name, "owned_by": "vllm", "root": path, "parent": "m"}
            for name, path in self.loaded.items()
        ]
        return [base, *adapters]

    async def _metrics(self, call: Call) -> None:
        lines = [
            f"process_start_time_seconds {self.started_at}",
            f"vllm:num_requests_running {len(self.running)}",
            "vllm:num_requests_waiting 0",
            f'vllm:lora_requests_info{{running_lora_adapters="{",".join(self.running)}"}} 1',
        ]
        body = ("\n".join(lines) + "\n").encode()
        await call.head(200, "text/plain", length=len(body))
        await call.send(body)

    async def _load(self, call: Call, asked: dict[str, Any]) -> None:
        name = asked["lora_name"]
        self.made.append((LOAD, name))
        refusal = self.refuses.get(name) or self.refuses.get("")
        if refusal is not None:
            await call.answer(refusal[0], error(*refusal, "InvalidUserInput"))
        elif name in self.loaded:
            message = f"The lora adapter '{name}' has already been loaded."
            await call.answer(400, error(400, message, "InvalidUserInput"))
        else:
            self.loaded[name] = asked["lora_path"]
            await self._say(call, f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, call: Call, name: str) -> None:
        self.made.append((UNLOAD, name))
        if self.loaded.pop(name, None) is None:
            await call.answer(404, error(404, f"The lora adapter '{name}' cannot be found."))
        else:
            await self._say(call, f"Success: LoRA adapter '{name}' removed successfully.")

    async def _say(self, call: Call, text: str) -> None:
        await call.head(200, "text/plain", length=len(text))
        await call.send(text.encode())

    async def _complete(self, call: Call, asked: dict[str, Any]) -> None:
        name = asked["model"]
        self.asked.append(name)
        if name != "m" and name not in self.loaded:
            self.unknown.append(name)
            await call.answer(404, error(404, f"The model `{name}` does not exist."))
            return
        self.running.append(name)
        if asked.get("stream"):
            await self._stream(call, name)
        else:
            await call.answer(200, completion(name))
        self.running.remove(name)

    async def _stream(self, call: Call, name: str) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event(name))
        if self.gate is not None:
            await self.gate.wait()
        await call.stream_rest(event(json.dumps("end")), event(finish="stop"), DONE)
