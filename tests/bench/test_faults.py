"""bin/bench faults: what it calls right, a clear error, wrong, and left behind."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from bench import __main__ as command
from bench.fault_clients import Clients
from bench.fault_engine import Expected, embedding
from bench.fault_judge import Asked, Reply, Verdict, judge
from bench.faults import Quiet, Run, log_findings, memory_findings

RIGHT = Expected((" one", " two"), "stop", prompt_tokens=3)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
BROKEN = {"message": "The replica broke off.", "type": "server_error", "code": "engine_failed"}
STREAM = Asked("id-1", "stream", expected=RIGHT)
PLAIN = Asked("id-1", "plain", expected=RIGHT)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


DONE = b"data: [DONE]\n\n"
WELL = token(" one") + token(" two") + token("", "stop")


def reply(body: bytes | dict[str, Any], status: int = 200, **changes: Any) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-request-id": "id-1", **changes.pop("headers", {})}
    return Reply(status, headers, content, changes.pop("is_whole", True))


def completion(text: str = " one two", finish: str = "stop", **usage: int) -> dict[str, Any]:
    choice = {"message": {"content": text}, "finish_reason": finish}
    return {"choices": [choice], "usage": USAGE | usage}


def test_a_stream_is_right_with_its_text_its_end_and_the_usage_it_asked_for() -> None:
    with_usage = Asked("id-1", "stream", expected=RIGHT, wants_usage=True)
    usage = event({"choices": [], "usage": USAGE})
    assert judge(STREAM, reply(WELL + DONE)) == Verdict("right")
    assert judge(with_usage, reply(WELL + usage + DONE)) == Verdict("right")
    assert judge(with_usage, reply(WELL + DONE)).kind == "wrong"
    assert judge(STREAM, reply(WELL + usage + DONE)).kind == "wrong"


@pytest.mark.parametrize(
    "body",
    [
        token(" one") + token("", "stop") + DONE,
        token(" one") + token(" one") + token(" two") + token("", "stop") + DONE,
        WELL,
        WELL + DONE + DONE,
        token(" one") + token(" two") + token("", "length") + DONE,
        token(" one") + token(" two") + DONE,
        token(" one"),
        b"",
        token(" two") + event({"error": BROKEN}),
        token(" one") + event({"error": BROKEN | {"code": "made_up"}}),
        token(" one") + event({"error": BROKEN}) * 2,
        WELL + DONE + b"data: {",
        b"\x00\xff{]",
    ],
    ids=[
        "missing",
        "repeated",
        "undone",
        "done-twice",
        "other-end",
        "no-end",
        "begun",
        "empty",
        "other-text",
        "undocumented",
        "two-errors",
        "half-event",
        "garbage",
    ],
)
def test_a_stream_is_wrong_with_anything_missing_changed_or_added(body: bytes) -> None:
    assert judge(STREAM, reply(body)).kind == "wrong"


def test_a_stream_that_ends_with_a_typed_error_is_a_clear_error() -> None:
    told = judge(STREAM, reply(token(" one") + event({"error": BROKEN}) + DONE))
    assert told == Verdict("error", "stream ended, engine_failed")


def test_a_plain_answer_is_right_only_as_the_engine_says_it() -> None:
    assert judge(PLAIN, reply(completion())) == Verdict("right")
    assert judge(PLAIN, reply(completion(" one"))).kind == "wrong"
    assert judge(PLAIN, reply(completion(finish="length"))).kind == "wrong"
    assert judge(PLAIN, reply(completion(completion_tokens=3))).kind == "wrong"
    assert judge(PLAIN, reply(completion(), is_whole=False)).kind == "wrong"


def test_the_answer_to_another_request_is_wrong() -> None:
    other = judge(PLAIN, reply(completion(), headers={"x-request-id": "id-2"}))
    assert other == Verdict("wrong", "of another request id")


def test_an_embedding_is_right_only_with_its_own_vector() -> None:
    asked = Asked("id-1", "embedding", text="a b")
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    right = {"data": [{"embedding": embedding("a b")}], "usage": usage}
    assert judge(asked, reply(right)) == Verdict("right")
    assert judge(asked, reply(right | {"data": [{"embedding": embedding("b")}]})).kind == "wrong"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (502, BROKEN, "error"),
        (500, BROKEN, "wrong"),
        (502, BROKEN | {"type": "engine"}, "wrong"),
        (502, BROKEN | {"message": ""}, "wrong"),
        (500, {"message": "the engine's own", "code": 500}, "error"),
        (418, {"message": "nobody's", "code": 418}, "wrong"),
    ],
)
def test_a_refusal_is_clear_only_as_documented(
    status: int, error: dict[str, Any], kind: str
) -> None:
    assert judge(PLAIN, reply({"error": error}, status)).kind == kind


def test_a_refusal_for_now_says_when_to_come_back() -> None:
    full = {"message": "Full.", "type": "rate_limit_error", "code": "queue_full"}
    retry = {"retry-after": "1"}
    assert judge(PLAIN, reply({"error": full}, 429)).kind == "wrong"
    assert judge(PLAIN, reply({"error": full}, 429, headers=retry)).kind == "error"


def quiet(minute: int = 1, memory_mib: float = 50.0, **left: int) -> Quiet:
    none = dict.fromkeys(
        ("running_requests", "inflight_requests", "inflight_tokens", "open_connections"), 0
    )
    return Quiet(minute=minute, memory_mib=memory_mib, **{**none, "descriptors": 20, **left})


def test_all_that_is_left_after_a_minute_is_named() -> None:
    assert quiet().leaks(20) == []
    leaks = quiet(inflight_tokens=7, open_connections=1, descriptors=90).leaks(20)
    assert leaks == [
        "minute 1: 7 inflight tokens left",
        "minute 1: 1 open connections left",
        "minute 1: 90 descriptors, 20 at the start left",
    ]


@pytest.mark.parametrize(("growth", "is_found"), [(0.0, False), (0.05, False), (0.5, True)])
def test_memory_may_grow_in_the_warm_up_only(growth: float, is_found: bool) -> None:
    series: Sequence[float] = [10, 30, 40, 48, 50] + [50 + growth * i for i in range(55)]
    minutes = [quiet(i, memory) for i, memory in enumerate(series, 1)]
    assert bool(memory_findings(minutes)) is is_found


def test_a_short_run_says_nothing_about_memory() -> None:
    assert memory_findings([quiet(i, 10.0 * i) for i in range(1, 8)]) == []


def test_defects_in_the_agents_log_are_findings_and_warnings_are_not() -> None:
    lines = '{"level": "warning"}\n{"level": "error"}\nTask was destroyed but it is pending!'
    assert len(log_findings(lines)) == 2


def test_a_wrong_answer_is_a_finding_with_its_request_id() -> None:
    clients = Clients(1, random.Random(1))
    clients.wrong.append("faults-7 (plain): another text")
    assert Run(clients, 20).findings() == ["WRONG faults-7 (plain): another text"]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("broken_stream", ["end", "continue"])
def test_a_few_seconds_of_faults_leave_nothing_wrong_or_behind(
    broken_stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"faults --minutes 0.08 --rate 6 --json --broken-stream {broken_stream}"
    status = command.main(words.split())
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == []
    assert status == 0
    assert told["answers"]["right"] > 0
    assert told["injected"]
