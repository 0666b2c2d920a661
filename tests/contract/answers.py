"""Holds every answer of the REST API that a test gets against what the schema promises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

JSON = "application/json"
NOT_PROMISED = ("/api/schema/", "/api/docs/", "/api/v1/agent/")


class Operation:
    """One path of the schema, with the validators of its answers by method and status."""

    def __init__(self, template: str, methods: Mapping[str, Any]) -> None:
        self.methods = methods
        # Names may have slashes, and the last one may be left out; the longer path is more exact.
        self.rank = (template.count("{"), -len(template))
        self.pattern = re.compile(re.sub(r"\{\w+\}", "(?s:.+)", template) + r"?\Z")


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return found


@cache
def operations() -> list[Operation]:
    made = [Operation(*item) for item in document()["paths"].items()]
    return sorted(made, key=lambda one: one.rank)


def plain(part: Any) -> Any:
    """Give a schema of OpenAPI 3.0 as JSON Schema: there `nullable` is a type of its own."""
    if isinstance(part, list):
        return [plain(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    made = {key: plain(inner) for key, inner in part.items() if key != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if part.get("nullable") is True else made


@cache
def components() -> dict[str, Any]:
    made: dict[str, Any] = plain(document()["components"])
    return made


@cache
def validator(place: int, method: str, status: str, kind: str) -> Draft202012Validator:
    content = operations()[place].methods[method]["responses"][status].get("content", {})
    assert kind in content, f"{kind} is not among {sorted(content)}"
    schema = {"components": components(), **plain(content[kind]["schema"])}
    return Draft202012Validator(schema)


def check(method: str, path: str, status: int, kind: str, body: bytes) -> None:
    """Fail where an answer is not what the schema says of its path, method and status."""
    if not path.startswith("/api/") or path.startswith(NOT_PROMISED):
        return
    place = next((n for n, o in enumerate(operations()) if o.pattern.match(unquote(path))), None)
    if place is None or method not in operations()[place].methods:
        assert status >= 400, f"{method} {path} is not in the schema"
        assert kind == JSON, f"{method} {path} answered {kind}"
        return
    answers = operations()[place].methods[method]["responses"]
    if status < 400:
        assert str(status) in answers, f"{method} {path}: {status} is not among {sorted(answers)}"
    key = str(status) if str(status) in answers else "default"
    if not body:
        assert "content" not in answers[key], f"{method} {path} {status}: no body"
        return
    judge = validator(place, method, key, kind)
    if kind != JSON:
        return
    faults = [
        f"{error.json_path}: {error.message[:200]}" for error in judge.iter_errors(json.loads(body))
    ]
    assert not faults, f"{method} {path} {status} is not what the schema says: {faults[:3]}"
