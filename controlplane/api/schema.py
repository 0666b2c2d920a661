"""What all operations share, said in the schema: errors, dry runs, locking, idempotency."""

from __future__ import annotations

from typing import Any

# Marks a POST that is done at once: it cannot be tried first, and no answer is kept for a repeat.
IMMEDIATE = "x-immediate"
_ERROR = {
    "type": "object",
    "description": "What happened and what to do; `code` is stable.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "field": {"type": "string"},
                "details": {"type": "object", "additionalProperties": True},
            },
        }
    },
}
_ERROR_RESPONSE = {
    "description": "An error.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}

# A removal has nothing to show but what becomes of the change.
_CHANGE = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["change"],
            "properties": {"change": {"$ref": "#/components/schemas/Change"}},
        }
    }
}


def _parameter(where: str, name: str, kind: str, text: str) -> dict[str, Any]:
    return {"in": where, "name": name, "schema": {"type": kind}, "description": text}


_OF_WRITES = (
    _parameter("query", "dry_run", "boolean", "Say what would be, and change nothing."),
    _parameter(
        "header",
        "Idempotency-Key",
        "string",
        "The same key with the same request acts once and gets the same answer, for 24 hours.",
    ),
)
_OF_EDITS = (
    _parameter("header", "If-Match", "string", "The version seen, in quotes; another answers 409."),
)
_OF_REMOVALS = (_parameter("query", "reason", "string", "Why; kept in the audit log."),)
_BY_METHOD = {
    "post": _OF_WRITES,
    "put": _OF_WRITES + _OF_EDITS,
    "patch": _OF_WRITES + _OF_EDITS,
    "delete": _OF_WRITES + _OF_EDITS + _OF_REMOVALS,
}


def say_what_all_share(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the parameters and the error shape that every operation has."""
    result["components"]["schemas"]["Error"] = _ERROR
    for operations in result["paths"].values():
        for method, operation in operations.items():
            if IMMEDIATE not in operation:
                operation.setdefault("parameters", []).extend(_BY_METHOD.get(method, ()))
                _say_what_a_dry_run_answers(method, operation["responses"])
            operation["responses"]["default"] = _ERROR_RESPONSE
    return result


def _say_what_a_dry_run_answers(method: str, responses: dict[str, Any]) -> None:
    """Add the 200 of a dry run where a change is answered with another status."""
    if method not in _BY_METHOD or "200" in responses:
        return
    shown = next((r["content"] for r in responses.values() if "content" in r), _CHANGE)
    responses["200"] = {"description": "A dry run: nothing was changed.", "content": shown}
