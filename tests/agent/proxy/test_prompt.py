"""The canonical prompt: the same for the same text, and a turn begins as the turn before it."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.proxy.envelope import ENVELOPE
from routing_agent.proxy.prompt import canonical, salt_of

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
CONTENT = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.lists(st.text(max_size=9).map(lambda t: {"type": "text", "text": t}), max_size=3),
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": CONTENT}), min_size=1, max_size=5
)


def prompt_of(body: dict[str, Any], *, ascii_only: bool = False) -> bytes:
    return canonical(ENVELOPE.decode(json.dumps(body, ensure_ascii=ascii_only).encode()))


def image(data: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@settings(max_examples=30)
@given(MESSAGES, MESSAGES)
def test_a_conversation_goes_on_where_its_last_turn_stopped(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    turn = {"model": "m", "tools": tools, "messages": before}
    assert prompt_of({**turn, "messages": before + after}).startswith(prompt_of(turn))


@settings(max_examples=30)
@given(MESSAGES)
def test_how_json_escapes_a_message_makes_no_difference(messages: list[dict[str, Any]]) -> None:
    body = {"messages": messages}
    assert prompt_of(body, ascii_only=True) == prompt_of(body)


@settings(max_examples=30)
@given(MESSAGES, MESSAGES)
def test_different_conversations_are_different_prompts(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    plain = [
        [(m["role"], m["content"]) for m in messages if isinstance(m["content"], str)]
        for messages in (one, other)
    ]
    if len(plain[0]) == len(one) and len(plain[1]) == len(other) and plain[0] != plain[1]:
        separators = {"\x00", "\x01"}
        if not any(separators & set(str(m["content"])) for m in one + other):
            assert prompt_of({"messages": one}) != prompt_of({"messages": other})


def test_a_longer_prompt_of_any_call_begins_as_the_shorter_one() -> None:
    for field, short, long in (
        ("prompt", "once upon", "once upon a time"),
        ("prompt", [1, 2, 3], [1, 2, 3, 4]),
        ("input", "once upon", "once upon a time"),
        ("input", [{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}, {}]),
    ):
        head = {"instructions": "Be kind.", "system": [{"type": "text", "text": "x"}]}
        assert prompt_of({**head, field: long}).startswith(prompt_of({**head, field: short}))


def test_tools_and_system_text_come_first_wherever_they_stand_in_the_body() -> None:
    tools, message = [{"name": "f"}], {"role": "user", "content": "hi"}
    one = prompt_of({"messages": [message], "system": "Be kind.", "tools": tools})
    other = prompt_of({"tools": tools, "system": "Be kind.", "messages": [message]})
    assert one == other
    assert one.index(b'"f"') < one.index(b"Be kind.") < one.index(b"hi")


def test_images_stand_for_themselves_by_a_hash() -> None:
    """R26: two images are not the same prefix, and neither is stored whole."""
    one, other = (prompt_of({"messages": [image(bytes([n]) * 100_000)]}) for n in (1, 2))
    assert one != other
    assert len(one) < 100
    again = prompt_of({"messages": [image(b"\x01" * 100_000), {"role": "user", "content": "?"}]})
    assert again.startswith(one)


def test_parts_of_unknown_kinds_tell_prompts_apart_too() -> None:
    def result(text: str) -> bytes:
        part = {"type": "tool_result", "tool_use_id": "t", "content": text}
        return prompt_of({"messages": [{"role": "user", "content": [part]}]})

    assert result("sunny") != result("rainy")
    assert len(result("x" * 200_000)) < 100
    assert result("x" * 200_000) != result("x" * 199_999)


def test_calls_of_tools_are_part_of_the_prompt() -> None:
    def call(name: str) -> bytes:
        calls = [{"function": {"name": name}}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return prompt_of({"messages": [message]})

    assert call("f") != call("g")


def test_the_salt_is_what_the_body_says() -> None:
    assert salt_of(ENVELOPE.decode(b'{"cache_salt":"s1"}')) == b'"s1"'
    assert salt_of(ENVELOPE.decode(b"{}")) == b""
