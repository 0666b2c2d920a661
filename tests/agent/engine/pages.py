"""An engine of a few prepared pages on a real socket: health, metrics, models, completions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

from routing_agent.control.http_server import Answer, HttpServer, Request


@dataclass
class Pages:
    """Answers by path with (status, body); `hang` paths never answer; everything is counted."""

    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Pages:
        self._server = HttpServer(self._handle)
        self.port = await self._server.start("127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        await self._server.close()

    async def _handle(self, request: Request) -> Answer:
        self.calls[request.path] += 1
        self.requests.append(request)
        if request.path in self.hang:
            await asyncio.Event().wait()
        status, body = self.pages.get(request.path, (404, '{"detail":"Not Found"}'))
        return Answer(status, body.encode())


def models(*ids: str, owned_by: str = "vllm", **more: object) -> str:
    entries = [{"id": id_, "object": "model", "owned_by": owned_by, **more} for id_ in ids]
    return json.dumps({"object": "list", "data": entries})


def vllm_metrics(*, running=1, waiting=0, kv=0.5, output=100, started=1000.0) -> str:
    return (
        f"process_start_time_seconds {started}\n"
        f'vllm:num_requests_running{{model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{model_name="m"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{model_name="m"}} {kv}\n'
        f'vllm:generation_tokens_total{{model_name="m"}} {output}\n'
    )
