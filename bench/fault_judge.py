"""Whether an answer given under faults is right, a clear error, or wrong. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from bench.fault_engine import Expected, embedding
from routing_agent.proxy.errors import CODES

ENGINE_STATUSES = (429, 500, 503)  # an engine's own error, passed on as it came


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as its answer depends on it."""

    request_id: str
    kind: Literal["stream", "plain", "embedding"]
    expected: Expected | None = None  # of chats
    text: str = ""  # of embeddings
    wants_usage: bool = False  # of streams


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool  # its HTTP framing ended as it should


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one answer; `why` names the error or what is wrong."""

    kind: Literal["right", "error", "wrong"]
    why: str = ""


class _Wrong(Exception):
    """The answer is not what it should be."""


def judge(asked: Asked, reply: Reply) -> Verdict:
    """Give the verdict on an answer that was read to its end."""
    try:
        _demand(reply.headers.get("x-request-id") == asked.request_id, "of another request id")
        _demand(reply.is_whole, f"status {reply.status}, cut off without an error")
        if reply.status != 200:
            return Verdict("error", _refusal(reply))
        if asked.kind == "stream":
            return _judge_stream(asked, reply.body)
        _judge_plain(asked, json.loads(reply.body))
    except _Wrong as problem:
        return Verdict("wrong", str(problem))
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        return Verdict("wrong", f"not an OpenAI answer ({problem!r}): {reply.body[:200]!r}")
    return Verdict("right")


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise _Wrong(problem)


def _refusal(reply: Reply) -> str:
    error = json.loads(reply.body)["error"]
    code = error["code"]
    is_engines = code == reply.status and code in ENGINE_STATUSES
    is_ours = code in CODES and CODES[code] == (reply.status, error["type"])
    _demand(is_ours or is_engines, f"status {reply.status} with an undocumented error {error}")
    _demand(bool(error["message"]), f"error {code} without a message")
    if reply.status in (429, 503):
        _demand(reply.headers.get("retry-after", "").isdigit(), f"{code} without Retry-After")
    return f"{reply.status} of the engine" if is_engines else f"{reply.status} {code}"


def _judge_plain(asked: Asked, answer: dict[str, Any]) -> None:
    if asked.kind == "embedding":
        count = len(asked.text.split())
        usage = {"prompt_tokens": count, "total_tokens": count}
        _demand(answer["data"][0]["embedding"] == embedding(asked.text), "another vector")
    else:
        choice, right = answer["choices"][0], _right(asked)
        usage = _usage(right)
        _demand(choice["message"]["content"] == right.text, "another text")
        _demand(choice["finish_reason"] == right.finish, f"ended {choice['finish_reason']}")
    _demand(answer["usage"] == usage, f"usage {answer['usage']}, right is {usage}")


def _judge_stream(asked: Asked, body: bytes) -> Verdict:
    events = [_data(event) for event in body.decode().split("\n\n") if event]
    _demand(body.endswith(b"\n\n"), "half an event at the end")
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]
    text, finishes = _told(chunks)
    right = _right(asked)
    if errors:
        return _broken_stream(errors, text, right)
    _demand(events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1, "not ended by one [DONE]")
    _demand(text == right.text, f"another text: {text[-80:]!r}, right is {right.text[-80:]!r}")
    _demand(finishes == [right.finish], f"ended {finishes}, right is {right.finish}")
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    wanted = [_usage(right)] if asked.wants_usage else []
    _demand(usages == wanted, f"usage {usages}, right is {wanted}")
    return Verdict("right")


def _broken_stream(errors: list[dict[str, Any]], text: str, right: Expected) -> Verdict:
    code = errors[0]["code"]
    _demand(len(errors) == 1, f"{len(errors)} errors in one stream")
    is_known = code in CODES or code in ENGINE_STATUSES  # an engine's own, passed on
    _demand(is_known, f"a stream's end with an undocumented error {errors[0]}")
    _demand(right.text.startswith(text), f"another text before the error: {text[-80:]!r}")
    return Verdict("error", f"stream ended, {code}")


def _told(chunks: list[dict[str, Any]]) -> tuple[str, list[str]]:
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [c["finish_reason"] for c in choices if c.get("finish_reason")]


def _data(event: str) -> str:
    _demand(event.startswith("data: "), f"not an event: {event[:80]!r}")
    return event.removeprefix("data: ")


def _right(asked: Asked) -> Expected:
    if asked.expected is None:
        raise ValueError("a chat needs what is expected of it")
    return asked.expected


def _usage(right: Expected) -> dict[str, int]:
    prompt, output = right.prompt_tokens, len(right.tokens)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
