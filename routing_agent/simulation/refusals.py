"""What a simulated engine refuses, in vLLM's words, and bodies that are not what they should be."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

_MISSING_FIELD = re.compile(r"missing required field `([^`]+)`")
_PLACE = re.compile(r"`\$\.?([^`]*)`")

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class EngineRefusal(Exception):
    """The engine cannot do what was asked; carries the answer in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


def decoded(body: bytes, shape: type[_Shape]) -> _Shape:
    """Decode a JSON body, or raise the refusal vLLM would answer."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as problem:
        raise _wrong_field(str(problem)) from problem
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise invalid("json_invalid", "1", f"JSON decode error: {problem}") from problem


def bad(message: str, param: str, value: object) -> EngineRefusal:
    """Refuse the value of a parameter."""
    text = f"{message}, got {value}. (parameter={param}, value={value})"
    return EngineRefusal(400, text, "BadRequestError", param)


def invalid(kind: str, field: str, message: str) -> EngineRefusal:
    """Refuse a body that does not have the shape it should have."""
    where = f"body.{field}"
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    return EngineRefusal(400, text, "Bad Request", where)


def _wrong_field(problem: str) -> EngineRefusal:
    missing = _MISSING_FIELD.search(problem)
    if missing:
        return invalid("missing", missing[1], "Field required")
    place = _PLACE.search(problem)
    return invalid("value_error", place[1] if place else "0", problem)
