"""What is asked of an engine and of the agent before it: what applications ask of an OpenAI API."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from bench.drop_in import Question

CHAT = "chat.completions.create"
COMPLETION = "completions.create"
HELLO = [{"role": "user", "content": "hello world, tell me a short story"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
USAGE = {"include_usage": True}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": {"type": "object", "properties": {}}},
}


def questions(model: str, embedding_model: str | None = None) -> list[Question]:
    """Give all questions; embeddings are asked of `embedding_model`, else of the same one."""
    return [
        *_chats(model),
        *_tools(model),
        *_completions(model),
        *_embeddings(embedding_model or model),
        *_errors(model),
        Question(name="models: list", call="models.list", fields={}, is_own=True),
    ]


def picture(colour: int = 200) -> str:
    """Give a PNG of one grey pixel as a data URI."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(bytes([0, colour]))) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chats(model: str) -> list[Question]:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": picture(), "detail": "low"}},
    ]
    sampled: dict[str, Any] = {"n": 2, "temperature": 0.8, "seed": 7}
    logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
    asked: dict[str, dict[str, Any]] = {
        "chat": {},
        "chat: stream": {"stream": True},
        "chat: stream, include_usage": {"stream": True, "stream_options": USAGE},
        "chat: n=2": sampled,
        "chat: n=2, stream, include_usage": sampled | {"stream": True, "stream_options": USAGE},
        "chat: n=2, stream": sampled | {"stream": True},
        "chat: logprobs": logprobs,
        "chat: logprobs, stream": logprobs | {"stream": True},
        "chat: content parts": {"messages": [{"role": "user", "content": parts[:1]}]},
        "chat: picture (data URI)": {"messages": [{"role": "user", "content": parts}]},
        "chat: picture, stream": {"messages": [{"role": "user", "content": parts}], "stream": True},
        "chat: several turns, non-ASCII": {
            "messages": [
                {"role": "system", "content": "Être bref. 短く。"},
                *HELLO,
                {"role": "assistant", "content": "Once…"},
                {"role": "user", "content": "go on 🙂"},
            ]
        },
        "chat: stop, max_completion_tokens": {"stop": ["e"], "max_completion_tokens": 20},
        "chat: json_schema": {"response_format": SCHEMA},
        "chat: fields of the engine's own": {"extra_body": {"top_k": 5, "min_p": 0.1}},
    }
    return [_chat(model, name, **fields) for name, fields in asked.items()]


def _tools(model: str) -> list[Question]:
    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    result = [
        *HELLO,
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "call-1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call-1", "content": "rain"},
    ]  # fmt: skip
    tools: dict[str, Any] = {"tools": [TOOL], "max_tokens": 60}
    asked: dict[str, dict[str, Any]] = {
        "tools: auto": {},
        "tools: auto, stream": {"stream": True},
        "tools: named": {"tool_choice": NAMED},
        "tools: named, stream": {"tool_choice": NAMED, "stream": True},
        "tools: required, stream, include_usage": {
            "tool_choice": "required", "stream": True, "stream_options": USAGE
        },
        "tools: none": {"tool_choice": "none"},
        "tools: result of a call": {"messages": result},
    }  # fmt: skip
    return [_chat(model, name, **(tools | fields)) for name, fields in asked.items()]


def _completions(model: str) -> list[Question]:
    common = {"model": model, "prompt": "hello world", "max_tokens": 12, "temperature": 0}
    sampled: dict[str, Any] = {"n": 2, "temperature": 0.8, "seed": 7, "logprobs": 2}
    asked: dict[str, dict[str, Any]] = {
        "completion": {},
        "completion: stream": {"stream": True},
        "completion: stream, include_usage": {"stream": True, "stream_options": USAGE},
        "completion: n=2, logprobs": sampled,
        "completion: n=2, logprobs, stream": sampled | {"stream": True},
        "completion: token ids": {"prompt": [11, 12, 13]},
    }
    return [
        Question(name=name, call=COMPLETION, fields=common | fields)
        for name, fields in asked.items()
    ]


def _embeddings(model: str) -> list[Question]:
    asked: dict[str, dict[str, Any]] = {
        "embeddings": {"input": "hello world"},
        "embeddings: several, as floats": {"input": ["a", "b"], "encoding_format": "float"},
        "embeddings: token ids": {"input": [11, 12, 13]},
    }
    return [
        Question(name=name, call="embeddings.create", fields={"model": model} | fields)
        for name, fields in asked.items()
    ]


def _errors(model: str) -> list[Question]:
    refused = [
        _chat("no-such-model", "error: unknown model"),
        _chat("no-such-model", "error: unknown model, stream", stream=True),
        _chat(model, "error: no messages", messages=[]),
    ]
    asked: dict[str, dict[str, Any]] = {
        "error: temperature below 0": {"temperature": -1},
        "error: wrong type": {"max_tokens": "many"},
        "error: wrong type, stream": {"max_tokens": "many", "stream": True},
        "error: too long an answer": {"max_tokens": 10_000_000},
        "error: messages of a wrong shape": {"messages": [{"role": 1, "content": 2}]},
        "error: tool that is not offered": {
            "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nobody"}}
        },
    }  # fmt: skip
    passed_on = [_chat(model, name, **fields) for name, fields in asked.items()]
    own = [Question(name=q.name, call=q.call, fields=q.fields, refused_here=True) for q in refused]
    return [*own, *passed_on]


def _chat(model: str, name: str, **fields: Any) -> Question:
    common = {"model": model, "messages": HELLO, "max_tokens": 16, "temperature": 0}
    if "max_completion_tokens" in fields:
        del common["max_tokens"]
    return Question(name=name, call=CHAT, fields=common | fields)
