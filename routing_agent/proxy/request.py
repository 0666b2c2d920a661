"""Reads just enough of a request body to route it: one typed pass, nothing re-encoded."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import xxhash

from routing_agent.core.prefix import FINGERPRINT_BYTES, told_apart
from routing_agent.proxy.envelope import (
    ENVELOPE,
    NO_RAW,
    ODD_ENVELOPE,
    ChatMessage,
    Envelope,
    OddEnvelope,
    Part,
)
from routing_agent.proxy.errors import ErrorAnswer

# What an image costs in prompt bytes, whatever its size: about 500 tokens at 4 bytes a token, the
# order of what vision models make of one picture.
IMAGE_BYTES: Final = 2048
MAX_MODEL_LENGTH: Final = 512

# Paths whose streams end with a usage chunk only if asked by `stream_options`.
USAGE_ON_REQUEST: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_NEEDS_MESSAGES: Final = frozenset({"/v1/chat/completions", "/v1/messages"})
_ABSENT: Final = NO_RAW  # compiled code finds a module's own name at no cost
_UNSET: Final = msgspec.UNSET
_NOTHING: Final = (b"null", b'""', b"[]")


class RequestRefused(Exception):
    """A request that cannot be routed; `answer` is what its client gets."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class ParsedRequest:
    """What routing knows of a request body."""

    wants_usage = False
    may_have_options = True  # `stream_options`, even if null
    session: str | None = None
    user: str | None = None
    max_tokens: int | None = None
    choices = 1
    lora: str | None = None  # the adapter, where it is named beside the model
    adapter = ""  # what engines know the adapter by, once it was found
    envelope: Envelope | None = None  # until it is known whether its prompt matters for the choice

    def __init__(
        self, model: str, prompt_bytes: int, fingerprint: bytes, *, is_stream: bool
    ) -> None:
        self.model = model
        self.prompt_bytes = prompt_bytes
        self.fingerprint = fingerprint
        self.is_stream = is_stream


def parse(body: bytes, path: str) -> ParsedRequest:
    """Read a body; raises `RequestRefused` with the answer for a bad one."""
    try:
        if not body.isascii():
            body.decode()  # fields that are skipped would not be checked otherwise
        envelope = ENVELOPE.decode(body)
    except msgspec.ValidationError as fault:
        return _parse_odd(body, path, fault)
    except UnicodeDecodeError as fault:
        raise _bad_json(f"The body is not UTF-8 (byte {fault.start}).") from None
    except RecursionError:
        raise _bad_json("The body is nested too deeply.") from None
    except msgspec.DecodeError as fault:
        raise _bad_json(f"The body is not valid JSON: {fault}.") from None
    model = _checked_model(envelope.model)
    lora = _lora_of(envelope)
    messages = envelope.messages
    if not messages and path in _NEEDS_MESSAGES:
        raise _invalid("'messages' must be a list with at least one message.", "messages")
    prompt_bytes, fingerprint = _measure(envelope, messages or [])
    options = envelope.stream_options
    parsed = ParsedRequest(model, prompt_bytes, fingerprint, is_stream=envelope.stream is True)
    if options is _UNSET:
        parsed.may_have_options = False
    elif options is not None:
        parsed.wants_usage = options.include_usage is True
    parsed.session, parsed.user = _session_text(envelope.session_id), envelope.user
    parsed.max_tokens, parsed.choices = _max_tokens(envelope), max(envelope.n or 1, 1)
    parsed.lora, parsed.envelope = lora, envelope
    return parsed


def _parse_odd(body: bytes, path: str, fault: msgspec.ValidationError) -> ParsedRequest:
    """Give a request in an unknown shape to the engine if it can be routed at all."""
    try:
        envelope = ODD_ENVELOPE.decode(body)
        whole: Any = msgspec.json.decode(body)
    except (msgspec.ValidationError, RecursionError) as worse:
        raise _invalid(f"{worse}." if str(worse) else "The body is nested too deeply.") from None
    except msgspec.DecodeError as worse:
        raise _bad_json(f"The body is not valid JSON: {worse}.") from None
    model = _checked_model(envelope.model)
    lora = _lora_of(envelope)
    if not envelope.messages and path in _NEEDS_MESSAGES:
        raise _invalid(f"{fault}.", "messages")
    options = whole.get("stream_options")
    head = body[:FINGERPRINT_BYTES]
    parsed = ParsedRequest(model, len(head), head, is_stream=envelope.stream is True)
    parsed.wants_usage = isinstance(options, dict) and options.get("include_usage") is True
    parsed.lora = lora
    return parsed


def _checked_model(model: str | None) -> str:
    if not model:
        raise _invalid("'model' must be the name of a model.", "model")
    if len(model) > MAX_MODEL_LENGTH:
        raise _invalid(f"'model' is longer than {MAX_MODEL_LENGTH} characters.", "model")
    return model


def _lora_of(envelope: Envelope | OddEnvelope) -> str | None:
    """Give the adapter that is named beside the model; refuse what no admission could judge.

    SGLang's `lora_path` even loads an adapter again that was unloaded, and takes a path.
    """
    if envelope.lora_path is not _ABSENT and bytes(envelope.lora_path) not in _NOTHING:
        raise _no_adapter(envelope.lora_path, "lora_path")
    raw = envelope.lora
    if raw is _ABSENT or bytes(raw) in _NOTHING:
        return None
    try:
        name = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise _no_adapter(raw, "lora") from None
    if not isinstance(name, str) or len(name) > MAX_MODEL_LENGTH:
        raise _no_adapter(raw, "lora")
    return name


def _no_adapter(raw: msgspec.Raw, name: str) -> RequestRefused:
    message = f"There is no adapter {_shown(raw)}. Name an adapter you may call as 'model'."
    return RequestRefused(ErrorAnswer("model_not_found", message, name))


def _shown(raw: msgspec.Raw) -> str:
    text = bytes(raw)[:MAX_MODEL_LENGTH].decode("utf-8", "replace")
    return text if text.startswith('"') else "like that"


def _session_text(session: str | int | None) -> str | None:
    return None if session is None or session == "" else str(session)


def _max_tokens(envelope: Envelope) -> int | None:
    if envelope.max_completion_tokens is not None:
        return envelope.max_completion_tokens
    told = envelope.max_tokens
    return told if told is not None else envelope.max_output_tokens


def _measure(envelope: Envelope, messages: list[ChatMessage]) -> tuple[int, bytes]:
    """Give the prompt's size in bytes, and the fingerprint of its beginning."""
    total = 0
    head: list[bytes] = []
    for raw in (envelope.system, envelope.instructions, envelope.prompt, envelope.input):
        if raw is not _ABSENT:
            view = memoryview(raw)
            total += len(view)
            head.append(bytes(view[:FINGERPRINT_BYTES]))
    if envelope.tools is not _ABSENT:
        total += len(memoryview(envelope.tools))
    in_head = True
    for message in messages:
        content = message.content
        if message.tool_calls is not _ABSENT:
            total += len(memoryview(message.tool_calls))
        if in_head or not isinstance(content, str):
            size, text = _content(content, with_text=in_head)
            total += size
            if in_head:
                head.append(text)
                in_head = message.role != "user"
        else:
            total += len(content) if content.isascii() else len(content.encode())
    return total, b"\x00".join(head)


def _content(content: str | list[Part] | None, *, with_text: bool) -> tuple[int, bytes]:
    if content is None:
        return 0, b""
    if isinstance(content, str):
        size = len(content) if content.isascii() else len(content.encode())
        return size, told_apart(content) if with_text else b""
    total = 0
    texts: list[bytes] = []
    for part in content:
        size, text = _part(part, with_text=with_text)
        total += size
        texts.append(text)
    return total, b"\x01".join(texts)


def _part(part: Part, *, with_text: bool) -> tuple[int, bytes]:
    for raw in (part.image_url, part.source, part.input_audio):
        if raw is not _ABSENT:
            digest = xxhash.xxh3_64_digest(memoryview(raw)) if with_text else b""
            return IMAGE_BYTES, digest
    text = (part.text or "").encode()
    return len(text), text if with_text else b""


def envelope_of(body: bytes) -> Envelope | None:
    """Read a body once more; None if it is in a shape that only the engine may judge."""
    try:
        return ENVELOPE.decode(body)
    except msgspec.MsgspecError:
        return None


def last_text(body: bytes) -> tuple[int, bool, str]:
    """Give a conversation's messages, whether it offers tools, and the text of the last message."""
    envelope = envelope_of(body)
    if envelope is None:
        return 1, False, ""
    has_tools = envelope.tools is not _ABSENT and bytes(envelope.tools) not in _NOTHING
    messages = envelope.messages
    if not messages:
        raw = envelope.prompt if envelope.prompt is not _ABSENT else envelope.input
        return 1, has_tools, "" if raw is _ABSENT else bytes(raw).decode("utf-8", "replace")
    content = messages[-1].content
    if isinstance(content, str):
        return len(messages), has_tools, content
    return len(messages), has_tools, " ".join(part.text or "" for part in content or ())


def _bad_json(message: str) -> RequestRefused:
    return RequestRefused(ErrorAnswer("invalid_json", message))


def _invalid(message: str, param: str | None = None) -> RequestRefused:
    return RequestRefused(ErrorAnswer("invalid_request", message, param))
