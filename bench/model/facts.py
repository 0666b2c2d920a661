"""What a live engine tells of itself: sizes, and counts of what it has done."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from bench.machine import BenchError
from routing_agent.engine.prometheus import Families, Reader
from routing_agent.http_client import CallFailed, HttpClient

_CACHE = "vllm:cache_config_info"
_QUEUE_S, _QUEUED = "vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count"
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_READER = Reader([_CACHE, _QUEUE_S, _QUEUED, _RUNNING, _WAITING])


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much an engine holds, as it says."""

    model: str
    context_tokens: int
    block_tokens: int
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals and levels of one moment; `None`: the engine does not tell."""

    queue_s: float | None
    queued: float | None
    running: float | None
    waiting: float | None

    def queue_wait_s(self, before: Counts) -> float | None:
        """Give the mean wait of those that began since `before`."""
        if None in (self.queue_s, self.queued, before.queue_s, before.queued):
            return None
        began = self.queued - before.queued  # type: ignore[operator]
        return (self.queue_s - before.queue_s) / began if began else None  # type: ignore[operator]


class EnginePage:
    """Reads an engine's models and metrics."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._client = HttpClient()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def sizes(self) -> Sizes:
        """Ask what it serves and holds; raises `BenchError` if it is no vLLM or does not answer."""
        models = await self._get("/v1/models")
        labels = [sample.labels for sample in (await self._families()).samples(_CACHE)]
        try:
            listed = msgspec.json.decode(models)["data"]
            return Sizes(
                model=str(listed[0]["id"]),
                context_tokens=int(listed[0]["max_model_len"]),
                block_tokens=int(labels[0]["block_size"]),
                kv_blocks=int(labels[0]["num_gpu_blocks"]),
            )
        except (LookupError, ValueError, TypeError, msgspec.DecodeError) as problem:
            raise BenchError(
                f"{self._url} does not tell its sizes the way vLLM does ({problem!r}): "
                "max_model_len of /v1/models, block_size and num_gpu_blocks of "
                f"{_CACHE}. Other makes of engine cannot be measured yet."
            ) from problem

    async def counts(self) -> Counts:
        """Read what it has done so far."""
        families = await self._families()
        names = (_QUEUE_S, _QUEUED, _RUNNING, _WAITING)
        return Counts(*(families.total(name) for name in names))

    async def _families(self) -> Families:
        return _READER.read((await self._get("/metrics")).decode())

    async def _get(self, path: str) -> bytes:
        try:
            answer = await self._client.call(
                "GET", self._url + path, headers=self._headers, timeout_s=20.0
            )
        except CallFailed as problem:
            raise BenchError(f"{self._url} does not answer: {problem}") from problem
        if not answer.ok:
            raise BenchError(f"{self._url}{path} answers {answer.status}")
        return answer.body
