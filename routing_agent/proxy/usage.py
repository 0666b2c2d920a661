"""An engine's own count of tokens: where it stands in an answer, in the spellings of all engines.

Apart from the code that relays answers, because shapes that are decoded into must not be compiled:
a compiled module does not keep the types of their fields.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec


class TokenDetails(msgspec.Struct):
    """How many prompt tokens came from the cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """An engine's own count of tokens, in the spellings of all engines."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens_details: TokenDetails | None = None
    cache_read_input_tokens: int | None = None

    def prompt(self) -> int | None:
        """Prompt tokens, if told."""
        return self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens

    def output(self) -> int | None:
        """Output tokens, if told."""
        told = self.completion_tokens
        return told if told is not None else self.output_tokens

    def cached(self) -> int | None:
        """Prompt tokens from the cache, if told."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return self.cache_read_input_tokens if details is None else details.cached_tokens


def usage_of(chunk: dict[str, Any]) -> Usage | None:
    for holder in (chunk, chunk.get("response"), chunk.get("message")):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            try:
                return msgspec.convert(holder["usage"], Usage)
            except msgspec.ValidationError:
                return None  # figures of a shape nobody knows: estimated instead
    return None


def merged(before: Usage | None, usage: Usage) -> Usage:
    """Join figures that come in several events, as Messages streams send them: newest wins."""
    if before is None:
        return usage
    for field in Usage.__struct_fields__:
        if getattr(usage, field) is None:
            setattr(usage, field, getattr(before, field))
    return usage


class _PlainBody(msgspec.Struct):
    usage: Usage | None = None


_plain_body: Final = msgspec.json.Decoder(_PlainBody)
_USAGE_KEY: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


def usage_of_body(body: bytes) -> Usage | None:
    """Give the usage figures of a plain answer."""
    try:
        return _plain_body.decode(body).usage
    except (msgspec.DecodeError, RecursionError):
        return None  # an answer without figures is estimated


def usage_of_tail(tail: bytes) -> Usage | None:
    """Give the usage figures near the end of a long plain answer."""
    found = list(_USAGE_KEY.finditer(tail))
    if not found:
        return None
    try:
        return msgspec.json.decode(found[-1].group(1), type=Usage)
    except msgspec.DecodeError:
        return None  # an answer without figures is estimated
