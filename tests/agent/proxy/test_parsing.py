"""Properties of what is parsed on the way: streams under any split, bodies under any rewrite."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routing_agent.proxy.request import IMAGE_BYTES, RequestRefused, parse
from routing_agent.proxy.splice import rewrite, top_level_values, without
from routing_agent.proxy.stream import (
    MAX_EVENT_BYTES,
    EventReader,
    StreamError,
    with_fields,
)
from routing_agent.proxy.usage import usage_of_body, usage_of_tail
from tests.fakes.engine import DONE, event, usage_event

TEXTS = st.text(max_size=12)
PIECES = st.one_of(
    TEXTS.map(event),
    st.just(b": ping\n\n"),
    st.just(b"event: x\ndata: not json\n\n"),
    st.just(b'data: {"choices":[],"usage":null}\n\n'),
    st.just(b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'),
    st.just(b'data: {"type":"message_delta","usage":{"output_tokens":3}}\n\n'),
    st.just(usage_event(11, 7)),
    st.just(event(finish="stop")),
    st.just(b'data: {"error":{"message":"x","code":500}}\n\n'),
    st.just(DONE),
)
STREAMS = st.lists(PIECES, max_size=8).map(b"".join)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def outcome(stream: bytes, cuts: list[int], *, strip: bool) -> tuple[Any, ...]:
    reader = EventReader(strip_usage=strip)
    edges = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
    out = b"".join(reader.feed(stream[a:b]) for a, b in pairwise(edges))
    out += reader.end()
    usage = reader.usage
    told = None if usage is None else (usage.prompt(), usage.output(), usage.cached())
    facts = (reader.has_token, reader.is_finished, reader.is_done, reader.error, told)
    payload = out.replace(b"\r\n", b"\n").replace(b"\r", b"\n").strip()
    while b"\n\n\n" in payload:
        payload = payload.replace(b"\n\n\n", b"\n\n")
    return (*facts, reader.is_complete, payload)


@given(STREAMS, ENDS, st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_any_split_of_a_stream_gives_the_same_result(
    stream: bytes, end: bytes, cuts: list[int], strip: bool
) -> None:
    """R01, R02: chunk borders carry no meaning, not even inside CRLF or a character."""
    stream = stream.replace(b"\n", end)
    assert outcome(stream, cuts, strip=strip) == outcome(stream, [], strip=strip)
    every_byte = list(range(len(stream)))
    assert outcome(stream, every_byte, strip=strip) == outcome(stream, [], strip=strip)


def test_a_token_behind_an_error_in_one_read_is_dropped() -> None:
    """R03: compiled as well."""
    token = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    reader = EventReader(strip_usage=False)
    assert reader.feed(token) == token
    assert reader.feed(b'data: {"error":{"message":"x","code":500}}\n\n' + token) == b""
    assert reader.error is not None


@given(STREAMS, st.lists(st.integers(0, 2000), max_size=12))
def test_a_stream_without_errors_passes_byte_for_byte(stream: bytes, cuts: list[int]) -> None:
    """R03: nothing is added, dropped or moved."""
    stream = stream.replace(b'data: {"error":{"message":"x","code":500}}\n\n', b"")
    reader = EventReader(strip_usage=False)
    edges = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
    out = b"".join(reader.feed(stream[a:b]) for a, b in pairwise(edges))
    assert out + reader.end() == stream


@given(st.lists(PIECES, max_size=12))
def test_the_quick_way_for_tokens_finds_what_the_slow_way_finds(pieces: list[bytes]) -> None:
    """R03: an event that passes as a token has been counted, and hides no end, error or usage."""
    slow, quick = EventReader(strip_usage=False), EventReader(strip_usage=False)
    for piece in pieces:
        passed = slow.feed(piece)
        assert (piece if quick.is_token(piece) else quick.feed(piece)) == passed
    for name in ("events", "has_token", "is_finished", "is_done", "error", "is_complete"):
        assert getattr(quick, name) == getattr(slow, name)


def test_tokens_in_the_frame_of_those_before_take_the_quick_way() -> None:
    reader = EventReader(strip_usage=False)
    for text in ("a", "b"):
        reader.feed(event(text))
    assert reader.is_token(event("c"))
    assert not reader.is_token(event('"'))
    assert not reader.is_token(event(finish="stop"))
    assert not reader.is_token(event("d") + event("e"))


def test_the_stripped_event_is_the_only_one_missing() -> None:
    """R10."""
    reader = EventReader(strip_usage=True)
    first, last = event("a"), event(finish="stop")
    assert reader.feed(first + last + usage_event(1, 2) + DONE) == first + last + DONE
    assert reader.usage is not None


def stamped(data: bytes, **fields: Any) -> bytes:
    """Give an event with more fields at its end, as vLLM writes them."""
    end = data.rindex(b"}")
    return data[:end] + b"," + msgspec.json.encode(fields)[1:-1] + data[end:]


@given(st.lists(st.integers(0, 2000), max_size=6), ENDS)
@example([386], b"\r\n")
def test_what_else_the_stripped_event_says_moves_to_the_final_event(
    cuts: list[int], end: bytes
) -> None:
    """vLLM stamps its fingerprint on the usage event, or on the final one where usage is not
    asked for: a client that did not ask finds it there, at the same byte."""
    told = {"system_fingerprint": "vllm-1", "metrics": {"x": 0.5}}
    final, usage = event("b", finish="stop"), stamped(usage_event(1, 2), **told)
    stream = (event("a") + final + usage + DONE).replace(b"\n", end)
    reader = EventReader(strip_usage=True)
    edges = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
    out = b"".join(reader.feed(stream[a:b]) for a, b in pairwise(edges)) + reader.end()
    assert out == (event("a") + stamped(final, **told) + DONE).replace(b"\n", end)


def test_a_final_event_waits_for_nothing_but_the_event_after_it() -> None:
    final = event(finish="stop")
    for after in (DONE, b": ping\n\n", event("b"), event("b") * 2):
        reader = EventReader(strip_usage=True)
        assert reader.feed(event("a")) == event("a")
        assert reader.feed(final) == b""
        assert not reader.is_token(after)
        assert reader.feed(after) == final + after
    reader = EventReader(strip_usage=True)
    assert reader.feed(final) + reader.end() == final
    assert reader.feed(final) + reader.release() == final
    assert EventReader(strip_usage=False).feed(final) == final


@pytest.mark.parametrize(
    "odd", [b"event: x\ndata: {}\n\n", b"data: {\ndata: }\n\n", b"data: [1]\n\n", b""]
)
def test_an_event_that_is_not_one_line_of_json_gets_no_fields(odd: bytes) -> None:
    assert with_fields(odd, {"a": 1}) == odd


def test_a_field_that_an_event_has_is_not_changed() -> None:
    assert with_fields(b'data: {"a":0}\r\n\r\n', {"a": 1}) == b'data: {"a":0}\r\n\r\n'


def test_an_endless_event_is_refused() -> None:
    """Memory per stream is bounded."""
    reader = EventReader(strip_usage=False)
    reader.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(StreamError):
        reader.feed(b"x")


def test_figures_of_the_messages_stream_are_joined() -> None:
    reader = EventReader(strip_usage=True)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 9, "cache_read_input_tokens": 2}}
    stop = {"type": "message_stop"}
    for chunk in (start, delta, stop):
        reader.feed(b"event: x\ndata: " + json.dumps(chunk).encode() + b"\n\n")
    assert reader.usage is not None
    assert (reader.usage.prompt(), reader.usage.output(), reader.usage.cached()) == (5, 9, 2)
    assert reader.is_complete


def test_odd_usage_is_no_usage() -> None:
    reader = EventReader(strip_usage=False)
    reader.feed(b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\ndata: [1]\n\n')
    reader.feed(b'data: {"choices":["odd"]}\n\ndata: {"type":7}\n\n')
    assert reader.usage is None
    assert usage_of_body(b"not json") is None
    assert usage_of_tail(b'"usage": {"prompt_tokens": "x"}') is None
    assert usage_of_tail(b"nothing") is None
    details = b'{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}'
    found = usage_of_tail(details)
    assert found is not None
    assert found.cached() == 3


KEYS = st.sampled_from(["model", "x", 'a"b', "stream_options", "é"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    body=st.dictionaries(TEXTS | st.just("messages"), JSON, max_size=5),
    model=TEXTS,
    new=TEXTS,
    ask=st.booleans(),
    ascii_only=st.booleans(),
    spaces=st.sampled_from([None, 2]),
    place=st.integers(0, 5),
)
def test_a_rewrite_changes_the_two_fields_and_nothing_else(
    body: dict[str, Any],
    model: str,
    new: str,
    ask: bool,
    ascii_only: bool,
    spaces: int | None,
    place: int,
) -> None:
    """R20: whatever else is in the body, however it is written."""
    items = [(k, v) for k, v in body.items() if k != "model"]
    items.insert(min(place, len(items)), ("model", model))
    raw = json.dumps(dict(items), ensure_ascii=ascii_only, indent=spaces)
    data = raw.encode("utf-8", "surrogatepass")
    found = json.loads(rewrite(data, model=new, ask_usage=ask))
    options = found.pop("stream_options", None)
    before = dict(items)
    given_options = before.pop("stream_options", None)
    if ask:
        assert options["include_usage"] is True
        if isinstance(given_options, dict):
            kept = {k: v for k, v in given_options.items() if k != "include_usage"}
            assert {k: v for k, v in options.items() if k != "include_usage"} == kept
    else:
        assert options == given_options
    assert found == {**before, "model": new}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","x":{"model":"a"}}',
        b'{"x":["model","a"],"y":"model","model":"a"}',
        b'{"mod\\u0065l":"a","x":{"model":"a"}}',
        b'{"x":"\\"model\\":","model" :\n "a"}',
        b'{"model":"a","model":"a"}',
        b'{"x":"\\\\","model":"a"}',
    ],
)
def test_keys_that_look_alike_are_told_apart(body: bytes) -> None:
    """R20: nested, escaped, repeated, inside strings."""
    expected = {**json.loads(body), "model": "b"}
    assert json.loads(rewrite(body, model="b", ask_usage=False)) == expected


@given(
    body=st.dictionaries(TEXTS, JSON, max_size=4),
    value=JSON,
    spaces=st.sampled_from([None, 2]),
    place=st.integers(0, 4),
)
def test_a_member_taken_out_takes_nothing_with_it(
    body: dict[str, Any], value: Any, spaces: int | None, place: int
) -> None:
    items = [(k, v) for k, v in body.items() if k != "lora"]
    data = json.dumps(dict([*items[:place], ("lora", value), *items[place:]]), indent=spaces)
    left = without(data.encode(), "lora")
    assert json.loads(left) == dict(items)
    assert without(left, "lora") == left


@pytest.mark.parametrize(
    "body",
    [
        b'{"lora":"a","lora":"b"}',
        b'{"x":1 , "lora":"a","l\\u006fra" : [1] }',
        b'{ "lora" : "a" , "x":{"lora":1},"y":["lora"]}',
    ],
)
def test_a_member_is_taken_out_however_it_is_written(body: bytes) -> None:
    expected = {k: v for k, v in json.loads(body).items() if k != "lora"}
    assert json.loads(without(body, "lora")) == expected


@pytest.mark.parametrize("value", [b"null", b"[1, {}]", b'{"a":[1]}', b"12", b'"x"', b"true"])
def test_values_are_found_whole(value: bytes) -> None:
    body = b'{"a":[{"k":1}],"k": %b , "z":"k"}' % value
    assert [body[a:b] for a, b in top_level_values(body, "k")] == [value]


def test_a_picture_is_not_its_bytes() -> None:
    """R26: a megabyte of base64 is not 250,000 tokens, and another picture is another prompt."""

    def asked(fill: str) -> Any:
        url = {"url": "data:image/png;base64," + fill * 1_000_000}
        content = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": url}]
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return parse(json.dumps(body).encode(), "/v1/chat/completions")

    assert asked("A").prompt_bytes == IMAGE_BYTES + 2
    assert asked("A").fingerprint != asked("B").fingerprint
    assert len(asked("A").fingerprint) < 100


def test_a_conversation_keeps_its_fingerprint_as_it_grows() -> None:
    """The session without an id: system text and first user turn."""

    def asked(*turns: str) -> bytes:
        messages = [{"role": "system", "content": "s"}]
        roles = ("user", "assistant")
        messages += [{"role": roles[i % 2], "content": t} for i, t in enumerate(turns)]
        body = json.dumps({"model": "m", "messages": messages}).encode()
        return parse(body, "/v1/chat/completions").fingerprint

    assert asked("a") == asked("a", "b", "c")
    assert asked("a") != asked("b")


def test_long_texts_are_told_apart_by_both_ends() -> None:
    """A fingerprint stays short, and two questions about one long document are two sessions."""

    def asked(text: str) -> bytes:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return parse(json.dumps(body).encode(), "/v1/chat/completions").fingerprint

    document = "word " * 30_000
    assert asked(document + "why?") != asked(document + "how?")
    assert asked("why?" + document) != asked("how?" + document)
    assert len(asked(document)) < 10_000


@given(st.binary(max_size=200))
def test_no_body_breaks_the_parser(body: bytes) -> None:
    """R25."""
    with contextlib.suppress(RequestRefused):
        parse(body, "/v1/chat/completions")


@pytest.mark.parametrize(
    ("member", "may_have"),
    [
        (b"", False),
        (b'"stream_options":null,', True),
        (b'"stream_options":{"include_usage":false},', True),
        (b'"stream_\\u006fptions":{"x":1},', True),
    ],
)
def test_options_are_looked_for_only_where_there_may_be_some(member: bytes, may_have: bool) -> None:
    body = b'{"model":"m",%b"messages":[{"role":"user","content":"stream_options"}]}' % member
    parsed = parse(body, "/v1/chat/completions")
    assert parsed.may_have_options is may_have
    sent = json.loads(rewrite(body, model=None, ask_usage=True, may_have_options=may_have))
    assert sent["stream_options"]["include_usage"] is True
    assert sent["messages"] == json.loads(body)["messages"]
