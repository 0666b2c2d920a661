"""What the agent must know of a kind of engine: its paths, its metric names, its first request.

A driver does no I/O: it names what to call and reads what came back; `probe.py` and `scrape.py`
call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from routing_agent.engine.prometheus import Families, Reader

PROCESS_START = "process_start_time_seconds"


class NotMetrics(Exception):
    """A scrape brought nothing that this driver can read; the message says what it brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One scrape in the product's own units. `None` = the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # 0 to 1
    kv_capacity_tokens: int | None = None
    prompt_tokens_total: float | None = None
    cached_prompt_tokens_total: float | None = None
    output_tokens_total: float | None = None
    preemptions_total: int | None = None
    process_started_at: float | None = None
    awake: bool | None = None  # False: asleep; it would accept requests and hang


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of an engine's /v1/models; `parent` is set for LoRA adapters."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The smallest request that proves a replica can generate."""

    path: str
    body: bytes


class Driver:
    """An engine of unknown make behind the OpenAI API: the base that the others refine."""

    name: ClassVar[str] = "openai"
    health_path: ClassVar[str] = "/v1/models"
    metrics_path: ClassVar[str | None] = None  # None: never scraped
    version_path: ClassVar[str | None] = None
    families: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._reader = Reader((*self.families, PROCESS_START))

    def read_load(self, text: str) -> EngineLoad:
        """Read a scrape; NotMetrics if there is nothing of this engine in it."""
        if text.lstrip()[:1] == "<":
            raise NotMetrics("the answer is a web page, not metrics")
        if not text.strip():
            raise NotMetrics("the answer is empty")
        found = self._reader.read(text)
        if not any(found.samples(name) for name in self.families):
            raise NotMetrics(f"no metric of {self.name} in the answer")
        return self.load_of(found)

    def load_of(self, found: Families) -> EngineLoad:
        """Map this engine's metric names to a load."""
        return EngineLoad()

    def read_version(self, body: bytes) -> str:
        """Read the engine's version; empty if the answer is not understood."""
        try:
            return msgspec.json.decode(body, type=_Version).version
        except msgspec.MsgspecError:
            return ""

    def first_request(self, model: str, *, embeds: bool = False) -> FirstRequest:
        """Give the smallest request for `model`: one token, or one embedding."""
        if embeds:
            return FirstRequest("/v1/embeddings", _json({"model": model, "input": "ready"}))
        content = {"model": model, "prompt": "ready", "max_tokens": 1, "temperature": 0}
        return FirstRequest("/v1/completions", _json(content))


def read_models(body: bytes) -> list[ServedModel]:
    """Read an answer of /v1/models; anything else raises ValueError."""
    try:
        return msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError as error:
        raise ValueError(f"/v1/models did not answer a list of models: {error}") from None


def whole(value: float | None) -> int | None:
    """Give a count as an integer, absent staying absent."""
    return None if value is None else round(value)


def usage(value: float | None) -> float | None:
    """Give a fill level of 0 to 1; what is outside is not a fill level and therefore absent."""
    if value is None or not 0 <= value <= 1.01:  # engines overshoot a full cache by rounding
        return None
    return min(value, 1.0)


def start_of(found: Families) -> float | None:
    """Give the start time of the engine's process, by the engine's clock."""
    started = found.samples(PROCESS_START)
    return started[0].value if started else None


def _json(content: dict[str, object]) -> bytes:
    return msgspec.json.encode(content)
