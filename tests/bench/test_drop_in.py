"""bin/bench drop-in: what counts as the same answer, and what it says of one that is not."""

from __future__ import annotations

import copy
from typing import Any

import httpx2
import pytest

from bench import __main__ as command
from bench.drop_in import Exchange, Heard, Question, compare, joined, table

QUESTION = Question(name="q", call="chat.completions.create", fields={})
CHUNKS: list[dict[str, Any]] = [
    {"id": "1", "choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]},
    {"id": "1", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
    {"id": "1", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
]


def heard(value: Any, body: bytes = b"{}", *, error: bool = False, **headers: str) -> Heard:
    return Heard(value, Exchange(200, httpx2.Headers(headers), body), error)


def test_bytes_are_the_same_but_for_ids_and_times() -> None:
    one = heard({"id": "1"}, b'{"id":"1","created":5,"x":0}')
    spaced = heard({"id": "2"}, b'{"id":"2","created":6,"x": 0}')
    assert compare(QUESTION, one, spaced).verdict == "same answer"
    same = heard({"id": "2"}, b'{"id":"2","created":6,"x":0}')
    assert compare(QUESTION, one, same).verdict == "same bytes"


def test_the_first_difference_is_named() -> None:
    one, other = {"usage": {"total": [1, 2]}}, {"usage": {"total": [1, 3]}}
    finding = compare(QUESTION, heard(one, b"1"), heard(other, b"2"))
    assert (finding.verdict, finding.detail) == ("DIFFERENT", ".usage.total[1]: 2 direct, 3 here")
    finding = compare(QUESTION, heard({"a": 1}, b"1"), heard({}, b"2"))
    assert finding.detail == ".a is only direct"


@pytest.mark.parametrize(
    ("direct", "here", "detail"),
    [
        ({"vary": "Origin"}, {}, "header vary: 'Origin', here None"),
        ({}, {"set-cookie": "x"}, "header set-cookie is new"),
        ({"server": "uvicorn", "date": "x"}, {"x-request-id": "1", "x-signalbox-pool": "p"}, ""),
    ],
)
def test_headers_are_compared_but_those_of_the_connection_and_our_own(
    direct: dict[str, str], here: dict[str, str], detail: str
) -> None:
    finding = compare(QUESTION, heard({}, **direct), heard({}, **here))
    assert finding.verdict == ("DIFFERENT" if detail else "same bytes")
    assert detail in finding.detail


def test_a_stream_cut_otherwise_into_chunks_is_the_same_stream() -> None:
    merged = [
        {"id": "2", "choices": [{"index": 0, "delta": {"content": "ab"}, "finish_reason": "stop"}]},
        {"id": "2", "choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]},
    ]
    assert compare(QUESTION, heard(CHUNKS, b"1"), heard(merged, b"2")).verdict == "same stream"
    lost = copy.deepcopy(CHUNKS[:2])
    assert compare(QUESTION, heard(CHUNKS, b"1"), heard(lost, b"2")).verdict == "DIFFERENT"


def test_calls_and_log_probabilities_are_joined_too() -> None:
    def chunk(arguments: str, *tokens: str) -> dict[str, Any]:
        call = {"index": 0, "function": {"arguments": arguments}}
        choice = {"index": 0, "delta": {"tool_calls": [call]},
                  "logprobs": {"content": [{"token": token} for token in tokens]}}  # fmt: skip
        return {"choices": [choice]}

    whole = joined([chunk('{"a', "1"), chunk('":1}', "2", "3")])
    assert whole == chunk('{"a":1}', "1", "2", "3")


def test_our_own_refusal_must_be_of_the_same_class_and_status_and_have_a_code() -> None:
    question = Question(name="q", call="x", fields={}, refused_here=True)

    def refusal(status: int, **body: object) -> Heard:
        return heard({"class": "NotFoundError", "status": status, "body": body}, error=True)

    assert compare(question, refusal(404), refusal(404, code="x")).verdict == "same error"
    assert compare(question, refusal(404), refusal(404)).detail == "the error has no code"
    assert compare(question, refusal(404), refusal(400, code="x")).verdict == "DIFFERENT"
    assert compare(question, heard({}), refusal(404, code="x")).verdict == "refused here"


def test_an_error_event_of_the_engine_may_get_a_status_but_keeps_its_words() -> None:
    def error(status: int | None, message: str) -> Heard:
        value = {"class": "APIError", "status": status, "body": {"message": message}}
        return heard(value, error=True)

    assert compare(QUESTION, error(None, "no"), error(400, "no")).verdict == "same error"
    assert compare(QUESTION, error(None, "no"), error(400, "yes")).verdict == "DIFFERENT"


def test_a_model_that_the_engine_lists_must_be_listed_with_its_size() -> None:
    question = Question(name="q", call="models.list", fields={}, is_own=True)
    one = heard({"data": [{"id": "m", "max_model_len": 5}]})
    other = heard({"data": [{"id": "m", "max_model_len": 5}, {"id": "n"}]})
    assert compare(question, one, other).verdict == "own answer"
    assert compare(question, other, one).detail == "missing: [('n', None)]"


def test_findings_are_shown_as_a_table() -> None:
    finding = compare(QUESTION, heard({}), heard({}))
    assert "| q | same bytes | 2 bytes |" in table([finding])


def test_without_both_addresses_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["drop-in", "--engine", "http://127.0.0.1:1"]) == 2
    assert "--agent" in capsys.readouterr().err


def test_an_engine_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = "http://127.0.0.1:1"
    assert command.main(["drop-in", "--engine", nobody, "--agent", nobody]) == 1
    assert nobody in capsys.readouterr().err
