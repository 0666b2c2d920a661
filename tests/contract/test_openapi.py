"""The REST API is a promise: a change of it shows as a change of `openapi.txt`.

To accept a change, run `SIGNALBOX_WRITE_SNAPSHOTS=1 pytest tests/contract/test_openapi.py` and
review the difference.
"""

import os
from pathlib import Path

from drf_spectacular.validation import validate_schema

from tests.contract.answers import document

SNAPSHOT = Path(__file__).with_name("openapi.txt")
SHARED = {"dry_run", "Idempotency-Key", "If-Match", "page", "page_size"}


def kind(part: dict) -> str:
    """Give a type in one word."""
    if "$ref" in part:
        return part["$ref"].rsplit("/", 1)[1]
    for key in ("allOf", "oneOf", "anyOf"):
        if key in part:
            return "|".join(kind(inner) for inner in part[key])
    word = part.get("type", "any")
    if word == "array":
        word = f"[{kind(part['items'])}]"
    if "enum" in part:
        word = "/".join(str(value) for value in part["enum"])
    return word + ("?" if part.get("nullable") else "")


def content(part: dict) -> str:
    media = part.get("content", {}).get("application/json")
    return kind(media["schema"]) if media else "-"


def operation_line(path: str, method: str, operation: dict) -> str:
    query = sorted(p["name"] for p in operation.get("parameters", []) if p["in"] == "query")
    query = [name for name in query if name not in SHARED]
    answers = [
        f"{code}:{content(answer)}"
        for code, answer in operation["responses"].items()
        if code != "default"
    ]
    body = content(operation["requestBody"]) if "requestBody" in operation else "-"
    return f"{method.upper()} {path} ?{','.join(query)} {body} -> {' '.join(answers)}"


def normal_form(found: dict) -> str:
    lines = [
        operation_line(path, method, operation)
        for path, operations in sorted(found["paths"].items())
        for method, operation in sorted(operations.items())
    ]
    for name, part in sorted(found["components"]["schemas"].items()):
        required = set(part.get("required", ()))
        fields = [
            f"{field}{'*' if field in required else ''}:{kind(inner)}"
            for field, inner in sorted(part.get("properties", {}).items())
        ]
        lines.append(f"{name} = {' '.join(fields) or kind(part)}")
    return "\n".join(lines) + "\n"


def test_the_schema_is_valid_openapi():
    validate_schema(document())


def test_the_api_is_what_was_promised():
    now = normal_form(document())
    if os.environ.get("SIGNALBOX_WRITE_SNAPSHOTS"):
        SNAPSHOT.write_text(now)
    assert now == SNAPSHOT.read_text()


def test_every_operation_says_how_it_fails():
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            assert "default" in operation["responses"], (method, path)


def test_every_write_can_be_tried_and_repeated():
    for path, operations in document()["paths"].items():
        for method in operations.keys() - {"get"}:
            if "x-immediate" in operations[method]:
                continue
            names = {p["name"] for p in operations[method]["parameters"]}
            assert {"dry_run", "Idempotency-Key"} <= names, (method, path)
