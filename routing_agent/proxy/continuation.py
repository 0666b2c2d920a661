"""The request by which another engine is asked to write on, made of the first one's bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from routing_agent.core.continuation import CHAT, CHAT_FIELDS, request_fault
from routing_agent.proxy.splice import Span, top_level_values
from routing_agent.proxy.transcript import Transcript
from routing_agent.wire import EngineName

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")


def fault_of(body: bytes, transcript: Transcript) -> str:
    """Say why a broken stream cannot be continued; "" if it can."""
    if transcript.fault:
        return transcript.fault
    try:
        asked: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "the request is of no known shape"
    return request_fault(asked, transcript.path, tokens=transcript.earlier_tokens)


def extended(body: bytes, transcript: Transcript, engine: EngineName) -> bytes:
    """Give the request with the text so far in it, and without the tokens that were sent.

    `body` is one that `fault_of` found nothing against.
    """
    text = transcript.text_to_continue()
    edits = list(_shorter(body, transcript.earlier_tokens))
    if text:
        edits.append(_text_edit(body, transcript.path, text))
        if transcript.path == CHAT:
            after = body.index(b"{") + 1
            edits.append(((after, after), CHAT_FIELDS[engine]))
    for (start, end), new in sorted(edits, reverse=True):
        body = b"".join((body[:start], new, body[end:]))
    return body


def _text_edit(body: bytes, path: str, text: str) -> tuple[Span, bytes]:
    """Put the text behind the prompt, or as a last message behind the others."""
    key = "messages" if path == CHAT else "prompt"
    *_, (_, end) = top_level_values(body, key)  # of a repeated key the last one counts
    quoted = msgspec.json.encode(text)
    message = b',{"role":"assistant","content":%b}' % quoted
    return (end - 1, end - 1), message if path == CHAT else quoted[1:-1]


def _shorter(body: bytes, tokens: int) -> list[tuple[Span, bytes]]:
    edits = []
    for name in _LIMITS:
        for start, end in top_level_values(body, name):
            value = msgspec.json.decode(body[start:end])
            if isinstance(value, int) and not isinstance(value, bool):
                least = 0 if name == "min_tokens" else 1
                edits.append(((start, end), b"%d" % max(value - tokens, least)))
    return edits
