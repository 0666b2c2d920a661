"""The canonical prompt: what an engine would read of a request, in the order in which it reads it.

Tools and system text come first, because chat templates put them there; messages follow in order.
Images and sounds stand for themselves by a hash. It serves one purpose, telling how far two prompts
begin alike: separators keep parts apart, nothing is closed at the end, so that a conversation's
next turn goes on exactly where this one stops.

Texts of messages are compared as they read, whatever way their JSON was escaped. Tools, system
text beside the messages, and prompts of the other calls are compared as they were spelled: clients
repeat their own spelling, and decoding it would cost more than it could find.
"""

from __future__ import annotations

from typing import Final

import msgspec
import xxhash

from routing_agent.core.prefix import INSIDE, PART, chain, chain_root
from routing_agent.core.table import Table
from routing_agent.proxy.envelope import NO_RAW, ChatMessage, Envelope, Part

# Calls whose prompts engines keep in their prefix caches.
CACHED_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
_ABSENT: Final = NO_RAW  # compiled code finds a module's own name at no cost
_CLOSING: Final = (b'"', b"]")


def chained(
    envelope: Envelope, table: Table, *, version: str, adapter: str
) -> tuple[list[int], int]:
    """Give the chain of a prompt's blocks, and how many bytes its canonical form has."""
    prompt = canonical(envelope)
    root = chain_root(table.hash_seed, version, adapter, salt_of(envelope))
    return chain(prompt, root, table.block_bytes), len(prompt)


def canonical(envelope: Envelope) -> bytes:
    """Give a request's canonical prompt: one join over what was decoded, nothing re-encoded."""
    pieces: list[bytes] = []
    for raw in (envelope.tools, envelope.system, envelope.instructions):
        if raw is not _ABSENT:
            pieces.append(bytes(raw))
            pieces.append(PART)
    for raw in (envelope.prompt, envelope.input):
        if raw is not _ABSENT:
            pieces.append(_open_ended(bytes(raw)))
    messages = envelope.messages
    if messages is not None:
        for message in messages:
            _add_message(pieces, message)
    return b"".join(pieces)


def salt_of(envelope: Envelope) -> bytes:
    """Give the request's `cache_salt` as it was spelled; empty if it has none."""
    raw = envelope.cache_salt
    return b"" if raw is _ABSENT else bytes(raw)


def _add_message(pieces: list[bytes], message: ChatMessage) -> None:
    pieces.append(PART)
    pieces.append(message.role.encode())
    content = message.content
    if isinstance(content, str):
        pieces.append(INSIDE)
        pieces.append(content.encode())
    elif content is not None:
        for part in content:
            pieces.append(INSIDE)
            _add_part(pieces, part)
    if message.tool_calls is not _ABSENT:
        pieces.append(INSIDE)
        pieces.append(bytes(message.tool_calls))


def _add_part(pieces: list[bytes], part: Part) -> None:
    if part.text is not None:
        pieces.append(part.text.encode())
    for raw in (part.image_url, part.source, part.input_audio, part.video_url, part.audio_url):
        if raw is not _ABSENT:
            pieces.append(_digest(raw))
    for raw in (part.content, part.input, part.file):
        if raw is not _ABSENT:
            view = memoryview(raw)
            pieces.append(bytes(view) if len(view) <= _SHORT_BYTES else _digest(raw))


# Of parts whose kind is not looked at (a tool's result, a file): longer ones may hold an image.
_SHORT_BYTES: Final = 65536


def _digest(raw: msgspec.Raw) -> bytes:
    return xxhash.xxh3_128_digest(memoryview(raw))


def _open_ended(spelled: bytes) -> bytes:
    """Leave out what closes a text or list: a longer prompt that begins alike has more there."""
    return spelled[:-1] if spelled[-1:] in _CLOSING else spelled
