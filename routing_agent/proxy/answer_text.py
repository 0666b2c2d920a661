"""The text of an answer, for comparing two: never on a request's path, never logged.

Content, reasoning and tool calls of the first choice, in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routing_agent.proxy.stream import decoded, fields_of, whole_events


def text_of(body: bytes, *, is_stream: bool) -> str:
    """Give the text of an answer's body, or of as much of it as there is.

    What is not JSON of a known kind is its own text.
    """
    if is_stream:
        chunks = (_chunk(event) for event in whole_events(body))
        return "".join(part for chunk in chunks if chunk is not None for part in _of_event(chunk))
    whole = decoded(body)
    if whole is None:
        return body.decode(errors="replace")
    parts = list(_of_body(whole))
    return "".join(parts) if parts else body.decode(errors="replace")


def _chunk(event: bytes) -> dict[str, Any] | None:
    _, payload = fields_of(event)
    return None if payload is None else decoded(payload)


def _of_event(chunk: dict[str, Any]) -> Iterator[str]:
    choice = _first(chunk)
    if choice is not None:
        yield from _strings(choice, "text")
        yield from _of_message(choice.get("delta"))
    elif str(chunk.get("type", "")).endswith(("_delta", ".delta")):
        yield from _strings(chunk, "delta")  # Responses
        delta = chunk.get("delta")
        if isinstance(delta, dict):  # Messages
            for name in ("text", "thinking", "partial_json"):
                yield from _strings(delta, name)


def _of_body(whole: dict[str, Any]) -> Iterator[str]:
    choice = _first(whole)
    if choice is not None:
        yield from _strings(choice, "text")
        yield from _of_message(choice.get("message"))
    for block in _dicts(whole.get("content")):  # Messages
        yield from _strings(block, "text")
    for item in _dicts(whole.get("output")):  # Responses
        for block in _dicts(item.get("content")):
            yield from _strings(block, "text")


def _of_message(message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        return
    for name in ("reasoning_content", "content"):
        yield from _strings(message, name)
    for call in _dicts(message.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            yield from _strings(function, "name")
            yield from _strings(function, "arguments")


def _first(chunk: dict[str, Any]) -> dict[str, Any] | None:
    return next((c for c in _dicts(chunk.get("choices")) if not c.get("index")), None)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _strings(holder: dict[str, Any], name: str) -> Iterator[str]:
    value = holder.get(name)
    if isinstance(value, str):
        yield value
