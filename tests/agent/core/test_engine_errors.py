"""One reading for every shape in which engines say that something went wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.engine_errors import message_of, read_error
from routing_agent.core.engine_traits import LINGER_S, linger_s
from routing_agent.core.retries import failure_of

SHAPES = [
    {"error": {"message": "words", "type": "BadRequestError", "param": None, "code": 400}},
    {"error": "words"},
    {"error": "words", "error_type": "validation"},
    {"object": "error", "message": "words", "type": "BadRequestError", "code": 400},
    {"detail": "words"},
    {"detail": [{"type": "json_invalid", "loc": ["body", 1], "msg": "words", "input": {}}]},
    {"success": False, "error_message": "words", "loaded_adapters": {}},
    {"error": {"code": 400, "message": "words", "type": "x", "n_prompt_tokens": 9, "n_ctx": 2}},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_words_are_found_in_every_shape(shape):
    error = read_error(400, json.dumps(shape).encode())
    assert (error.message, error.kind, error.code) == ("words", "invalid", 400)
    assert message_of(json.dumps(shape).encode()) == "words"


@pytest.mark.parametrize(
    ("status", "message", "kind", "failure"),
    [
        (500, "cannot schedule new futures after shutdown", "stopping", "stopping"),
        (500, "EngineCore encountered an issue. See stack trace", "dead", "engine_error"),
        (500, "LoRA rank 64 is greater than max_lora_rank 16.", "invalid", "refused"),
        (500, "image input is not supported - hint: provide the mmproj", "invalid", "refused"),
        (500, "Invalid base64 value", "invalid", "refused"),
        (500, "Unsupported param: suffix", "invalid", "refused"),
        (500, "something else", "broken", "engine_error"),
        (503, "The request queue is full.", "overloaded", "overloaded"),
        (503, "Loading model", "loading", "overloaded"),
        (429, "Model is overloaded", "overloaded", "overloaded"),
        (401, "Unauthorized", "unauthorized", "engine_error"),
        (404, "The model does not exist", "not_found", "refused"),
        (400, "prompt too long", "invalid", "refused"),
        (502, "", "broken", "engine_error"),
    ],
)
def test_words_and_status_say_what_happened(status, message, kind, failure):
    error = read_error(status, json.dumps({"error": {"message": message}}).encode())
    assert (error.kind, failure_of(error)) == (kind, failure)


@pytest.mark.parametrize(
    ("payload", "code", "failure"),
    [
        ({"error": {"object": "error", "message": "The request queue is full.", "code": 503}},
         503, "overloaded"),
        ({"error": {"message": "EngineCore encountered an issue.", "code": 500}},
         500, "engine_error"),
        ({"error": {"message": "too long", "code": 400}}, 400, "refused"),
        ({"error": {"message": "odd", "code": "404"}}, 404, "refused"),
        ({"error": {"message": "odd", "code": None}}, 0, "engine_error"),
        ({"error": {"message": "odd", "code": True}}, 0, "engine_error"),
        ({"error": "words alone"}, 0, "engine_error"),
    ],
)  # fmt: skip
def test_an_error_under_a_200_is_judged_by_its_own_code(payload, code, failure):
    error = read_error(0, json.dumps(payload).encode())
    assert (error.code, failure_of(error)) == (code, failure)


def test_plain_words_are_words_and_pages_are_not():
    assert read_error(500, b"Internal Server Error").message == "Internal Server Error"
    assert read_error(502, b"<html><h1>Bad Gateway</h1>").message == ""
    assert read_error(500, b'{"x": 1}').message == ""
    assert read_error(422, b'{"detail": [7]}').message == ""
    assert read_error(422, b'{"detail": [{"msg": 7}]}').message == ""


@given(st.integers(0, 599), st.binary(max_size=200))
def test_any_bytes_give_a_reading(status, body):
    error = read_error(status, body)
    assert len(error.message) <= 300
    assert failure_of(error)
    assert error.may_be_retried == (error.kind not in ("invalid", "not_found", "unauthorized"))


def test_only_plain_answers_of_some_engines_go_on_without_their_client():
    assert linger_s("sglang", is_stream=False) == LINGER_S["sglang"] > 0
    assert linger_s("sglang", is_stream=True) == linger_s("vllm", is_stream=False) == 0
