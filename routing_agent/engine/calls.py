"""Calls that change an engine: adapters in and out, sleep and waking. Built here, sent elsewhere.

Each call says what to send and how long that may take; `read` says what the answer means, so that a
caller never guesses from a status. All of them are safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from routing_agent.core.engine_errors import EngineError, read_error

Outcome = Literal[
    "done",
    "already",  # it was so before: nothing changed
    "rejected",  # the adapter or the call is at fault: never try again unchanged
    "unavailable",  # this engine was started without the ability; `message` names the option
    "failed",  # try again later, or at another replica
]

QUICK_S: Final = 30.0  # a load reads weights from disk: 5 ms were seen, disks may be slow
SLOW_S: Final = 120.0  # moving weights off a GPU, or waiting for requests that run


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """What the answer to a call means."""

    outcome: Outcome
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether things are now as the call wanted them."""
        return self.outcome in ("done", "already")

    @property
    def may_be_retried(self) -> bool:
        """Whether the same call may succeed later."""
        return self.outcome == "failed"


Judge = Callable[[int, bytes], CallVerdict]


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One call to an engine, ready to be sent with the engine's own key."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    body: bytes
    timeout_s: float
    judge: Judge

    def read(self, status: int, body: bytes) -> CallVerdict:
        """Say what an answer means."""
        return self.judge(status, body)

    @property
    def headers(self) -> dict[str, str]:
        """Give the headers that go with the body."""
        return {"content-type": "application/json"} if self.body else {}


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """How an engine takes LoRA adapters in and out while it runs."""

    load_path: str
    unload_path: str
    option: str  # what the engine must be started with
    judge_load: Judge
    judge_unload: Judge
    unload_timeout_s: float = QUICK_S
    pins: bool = False  # whether a load may ask never to be evicted

    def load(self, name: str, path: str, *, pinned: bool = False) -> EngineCall:
        """Load the adapter in the folder `path` (as the engine sees it) under `name`."""
        content: dict[str, object] = {"lora_name": name, "lora_path": path}
        if pinned and self.pins:
            content["pinned"] = True
        body = msgspec.json.encode(content)
        return EngineCall("POST", self.load_path, body, QUICK_S, self.judge_load)

    def unload(self, name: str) -> EngineCall:
        """Take the adapter `name` out; one that is not there is out already."""
        body = msgspec.json.encode({"lora_name": name})
        return EngineCall("POST", self.unload_path, body, self.unload_timeout_s, self.judge_unload)


@dataclass(frozen=True, slots=True)
class SleepCalls:
    """How an engine gives its GPU memory back and takes it again, and how it is paused."""

    sleep: EngineCall
    wake: EngineCall
    pause: EngineCall
    resume: EngineCall


def judge_by(option: str, already: Mapping[int, tuple[str, ...]]) -> Judge:
    """Make a judge: `already` gives, by status, the words that mean "it was so before"."""

    def judge(status: int, body: bytes) -> CallVerdict:
        if 200 <= status < 300:
            return _judge_good(body)
        error = read_error(status, body)
        words = error.message.lower()
        if any(word in words for word in already.get(status, ())):
            return CallVerdict("already", error.message)
        if _is_no_route(error):
            return CallVerdict("unavailable", f"The engine knows no such call: start it {option}.")
        return _judge_bad(error)

    return judge


def _judge_good(body: bytes) -> CallVerdict:
    """Read an answer under a 2xx: SGLang can say "success": false there."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None  # vLLM answers in plain words
    if isinstance(found, dict) and found.get("success") is False:
        return _judge_bad(read_error(400, body))
    return CallVerdict("done")


def _judge_bad(error: EngineError) -> CallVerdict:
    message = error.message or f"status {error.code}"
    if error.kind == "unauthorized":
        return CallVerdict("failed", f"The engine does not take this agent's key: {message}")
    if error.may_be_retried:
        return CallVerdict("failed", message)
    return CallVerdict("rejected", message)


def _is_no_route(error: EngineError) -> bool:
    """Tell a route that does not exist from a thing that does not: by FastAPI's own words."""
    return error.code in (404, 405, 501) and error.message in (
        "",
        "Not Found",
        "Method Not Allowed",
        "File Not Found",
    )


def post(path: str, content: Mapping[str, object] | None, judge: Judge) -> EngineCall:
    """Make a call that may take long."""
    body = b"" if content is None else msgspec.json.encode(content)
    return EngineCall("POST", path, body, SLOW_S, judge)
