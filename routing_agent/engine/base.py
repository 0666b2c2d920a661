"""What the agent must know of a kind of engine: its paths, its metrics, its calls, its limits.

A driver does no I/O: it names what to call and reads what came back; `probe.py` and `scrape.py`
call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import msgspec

from routing_agent.core.engine_traits import adapter_model
from routing_agent.engine.calls import AdapterCalls, SleepCalls
from routing_agent.engine.prometheus import Families, Reader
from routing_agent.wire import EngineName

PROCESS_START = "process_start_time_seconds"

MetricKind = Literal["gauge", "counter", "histogram"]


class NotMetrics(Exception):
    """A scrape brought nothing that this driver can read; the message says what it brought."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure's names over an engine's versions, newest first, and what they are."""

    names: tuple[str, ...]
    kind: MetricKind = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One scrape in the product's own units. `None` = the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    max_running: int | None = None
    kv_usage: float | None = None  # 0 to 1
    kv_capacity_tokens: int | None = None
    prompt_tokens_total: float | None = None  # cached ones included
    cached_prompt_tokens_total: float | None = None
    output_tokens_total: float | None = None
    preemptions_total: int | None = None
    steps_total: float | None = None  # moves while the engine computes, whatever for
    process_started_at: float | None = None
    awake: bool | None = None  # False: asleep; it would accept requests and hang
    running_adapters: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What stays as it is for the life of an engine's process. `None` or "" = not told."""

    version: str = ""
    kv_capacity_tokens: int | None = None
    max_running: int | None = None

    def joined(self, other: EngineFacts) -> EngineFacts:
        """Give these facts with what only `other` tells."""
        return EngineFacts(
            version=self.version or other.version,
            kv_capacity_tokens=_first(self.kv_capacity_tokens, other.kv_capacity_tokens),
            max_running=_first(self.max_running, other.max_running),
        )


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of an engine's /v1/models; `parent` is set for LoRA adapters."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str | None = None
    aliases: tuple[str, ...] = ()
    created: Any = None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The smallest request that proves a replica can generate."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StatePage:
    """A page whose one boolean says that a live engine takes no requests now."""

    path: str
    field: str
    reason: str


class Driver:
    """An engine of unknown make behind the OpenAI API: the base that the others refine."""

    name: ClassVar[EngineName] = "openai"
    # Cheap pages that are good only if the engine takes requests; the first one it knows is used.
    ready_paths: ClassVar[tuple[str, ...]] = ("/v1/models", "/health")
    state_pages: ClassVar[tuple[StatePage, ...]] = ()
    fact_paths: ClassVar[tuple[str, ...]] = ()
    metrics_path: ClassVar[str | None] = None  # None: never scraped
    metrics: ClassVar[Mapping[str, Metric]] = {}  # by field of EngineLoad
    untold: ClassVar[Mapping[str, str]] = {}  # fields no version tells, and why
    # Whether /v1/models names all it serves; then another name means other weights.
    lists_all_models: ClassVar[bool] = False
    # Whether it refuses a model or adapter it does not have; else it answers with its base model.
    refuses_unknown_models: ClassVar[bool] = False
    adapters: ClassVar[AdapterCalls | None] = None  # None: none at run time
    sleep: ClassVar[SleepCalls | None] = None

    def __init__(self) -> None:
        self.families = tuple(n for metric in self.metrics.values() for n in metric.names)
        self._reader = Reader((*self.families, PROCESS_START))

    def read_load(self, text: str) -> EngineLoad:
        """Read a scrape; NotMetrics if there is nothing of this engine in it."""
        start = text.lstrip()[:1]
        if start == "<":
            raise NotMetrics("the answer is a web page, not metrics")
        if start in ("{", "["):
            raise NotMetrics("the answer is JSON, not metrics")
        if not start:
            raise NotMetrics("the answer is empty")
        found = self._reader.read(text)
        if not any(found.samples(name) for name in self.families):
            raise NotMetrics(f"no metric of {self.name} in the answer")
        return replace(self.load_of(found), process_started_at=start_of(found))

    def load_of(self, found: Families) -> EngineLoad:
        """Map this engine's metrics to a load."""
        return EngineLoad()

    def missing(self, load: EngineLoad) -> dict[str, str]:
        """Say of every figure that `load` lacks why it does."""
        return {
            f.name: self.untold.get(f.name) or self._unseen(f.name)
            for f in fields(load)
            if getattr(load, f.name) is None
        }

    def _unseen(self, field: str) -> str:
        metric = self.metrics.get(field)
        names = metric.names if metric is not None else ()
        if field == "process_started_at":
            names = (PROCESS_START,)
        if not names:
            return f"{self.name} has no metric for it"
        return f"no usable sample of {' or '.join(names)} in the answer"

    def read_facts(self, path: str, body: bytes) -> EngineFacts:
        """Read what one of `fact_paths` told; what is not understood is absent."""
        return EngineFacts()

    def request_model(self, base: str, adapter: str | None) -> str | None:
        """Give the `model` a request must name; `None` = this engine cannot be asked for it."""
        return base if adapter is None else adapter_model(self.name, base, adapter)

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


def names_of(models: Iterable[ServedModel]) -> tuple[str, ...]:
    """Give every name a list of models answers to, each once."""
    return tuple(dict.fromkeys(name for model in models for name in (model.id, *model.aliases)))


def adapters_of(models: Iterable[ServedModel]) -> tuple[str, ...]:
    """Give the LoRA adapters in a list of models: those that stand on another one."""
    return tuple(model.id for model in models if model.parent)


def json_object(body: bytes) -> dict[str, Any]:
    """Give a JSON object; what is none is empty."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def count_in(found: Mapping[str, Any], *names: str) -> int | None:
    """Give the first positive whole number under one of `names`."""
    for name in names:
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def text_in(found: Mapping[str, Any], name: str) -> str:
    """Give the text under `name`, "" if there is none."""
    value = found.get(name)
    return value if isinstance(value, str) else ""


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


def _first(one: int | None, other: int | None) -> int | None:
    return one if one is not None else other


def _json(content: dict[str, object]) -> bytes:
    return msgspec.json.encode(content)
