"""The text of answers of every kind that is relayed."""

from __future__ import annotations

import json

import pytest

from routing_agent.proxy.answer_text import text_of

TOOL = {"function": {"name": "look", "arguments": '{"x": 1}'}}


def events(*chunks: object) -> bytes:
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks)


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {}}]}], "a"),
        ([{"choices": [{"text": "a"}]}, {"choices": [{"text": "b", "index": 1}]}], "a"),
        ([{"choices": [{"delta": {"reasoning_content": "r", "tool_calls": [TOOL]}}]}],
         'rlook{"x": 1}'),
        ([{"type": "response.output_text.delta", "delta": "a"}, {"type": "response.completed"}],
         "a"),
        ([{"type": "content_block_delta", "delta": {"text": "a"}}], "a"),
        (["x", {"choices": []}, {"usage": 1}], ""),
    ],
)  # fmt: skip
def test_streams(chunks: list[object], text: str) -> None:
    assert text_of(b": comment\n\n" + events(*chunks), is_stream=True) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"message": {"content": "a"}}]}, "a"),
        ({"choices": [{"message": {"content": None, "tool_calls": [TOOL, {"function": 1}]}}]},
         'look{"x": 1}'),
        ({"choices": [{"text": "a"}]}, "a"),
        ({"content": [{"text": "a"}, {"text": "b"}]}, "ab"),
        ({"output": [{"content": [{"text": "a"}]}]}, "a"),
        ({"choices": [{"message": "x"}]}, '{"choices": [{"message": "x"}]}'),
    ],
)  # fmt: skip
def test_bodies(body: object, text: str) -> None:
    assert text_of(json.dumps(body).encode(), is_stream=False) == text


def test_what_is_no_json_is_its_own_text() -> None:
    assert text_of(b"oops \xff", is_stream=False) == "oops \ufffd"
