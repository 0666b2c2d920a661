"""Changes the two fields a router must change in a request body, and not one byte beside them.

The body is never re-encoded: big integers, `0.10`, unknown fields and spacing reach the engine as
the client wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

# A whole string, or one structural character.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
_AFTER_KEY: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_COMMA: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,}\] \t\r\n]*")
# Letters of a key can hide in escapes; every letter of "model" is \u006x.
_HIDDEN_LETTER: Final = b"\\u00"

Span = tuple[int, int]


def rewrite(
    body: bytes, *, model: str | None, ask_usage: bool, may_have_options: bool = True
) -> bytes:
    """Give `body` with another `model`, and with `stream_options.include_usage` switched on.

    `body` must be a valid JSON object that has a `model` string. If it is known to have no
    `stream_options`, they are not looked for.
    """
    edits: list[tuple[Span, bytes]] = []
    if model is not None:
        new = msgspec.json.encode(model)
        edits.extend((span, new) for span in _model_spans(body))
    if ask_usage:
        edits.append(_usage_edit(body, may_have_options))
    for (start, end), new in sorted(edits, reverse=True):
        body = b"".join((body[:start], new, body[end:]))
    return body


def without(body: bytes, key: str) -> bytes:
    """Give `body` without the members of its outermost object under `key`."""
    while True:
        member = next(top_level_members(body, key), None)
        if member is None:
            return body
        body = _cut(body, member)


def _cut(body: bytes, member: Span) -> bytes:
    """Take a member out, with the comma behind it, or the one before it if it is the last."""
    start, end = member
    behind = _COMMA.match(body, end)
    if behind is not None:
        return body[:start] + body[behind.end() :]
    before = body[:start].rstrip(b" \t\r\n")
    return before.removesuffix(b",") + body[end:]


def _model_spans(body: bytes) -> list[Span]:
    """Find the value of `model`; more than one if the client repeated the key."""
    at = body.find(b'"model"')
    if at >= 0 and body.find(b'"model"', at + 7) < 0 and _HIDDEN_LETTER not in body:
        start = _value_start(body, at + 7)
        token = _TOKEN.match(body, start) if start is not None else None
        if token is not None:
            return [token.span()]
    return list(top_level_values(body, "model"))


def _usage_edit(body: bytes, may_have_options: bool) -> tuple[Span, bytes]:
    if may_have_options and (b'"stream_options"' in body or _HIDDEN_LETTER in body):
        spans = list(top_level_values(body, "stream_options"))
        if spans:
            start, end = spans[-1]
            options: Any = msgspec.json.decode(body[start:end])
            if not isinstance(options, dict):
                options = {}
            options["include_usage"] = True
            return (start, end), msgspec.json.encode(options)
    after = body.index(b"{") + 1
    return (after, after), b'"stream_options":{"include_usage":true},'


def top_level_values(body: bytes, key: str) -> Iterator[Span]:
    """Give the spans of the values that the outermost object holds under `key`."""
    for _, start, end in _members(body, key):
        yield start, end


def top_level_members(body: bytes, key: str) -> Iterator[Span]:
    """Give the spans of the members, name and value, of the outermost object under `key`."""
    for start, _, end in _members(body, key):
        yield start, end


def _members(body: bytes, key: str) -> Iterator[tuple[int, int, int]]:
    """Give where each member begins, where its value begins, and where that ends."""
    depth = 0
    skip_to = 0
    for token in _TOKEN.finditer(body):
        if token.start() < skip_to:
            continue
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and _is_key(token.group(), key):
            start = _value_start(body, token.end())
            if start is not None:  # a key, not a value that reads like one
                end = _value_end(body, start)
                yield token.start(), start, end
                skip_to = end


def _is_key(token: bytes, key: str) -> bool:
    if b"\\" not in token:
        return token[1:-1] == key.encode()
    return bool(msgspec.json.decode(token) == key)


def _value_start(body: bytes, after_key: int) -> int | None:
    colon = _AFTER_KEY.match(body, after_key)
    return colon.end() if colon is not None else None


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first not in (b"{", b"[", b'"'):
        scalar = _SCALAR.match(body, start)
        return scalar.end() if scalar is not None else start
    depth = 0
    for token in _TOKEN.finditer(body, start):
        kind = body[token.start()]
        if kind in b"{[":
            depth += 1
        elif kind in b"}]":
            depth -= 1
        if depth == 0:
            return token.end()
    return len(body)
