"""What real engines were seen to do, replayed byte for byte: no client is misled by any of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routing_agent.core import engine_traits
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import DONE, Call, Script, completion, event, failing, hanging, obliging

SAMPLES = Path(__file__).parents[4] / "shared" / "engine_samples"
STREAM = chat(stream=True)
CORE_DEAD = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
STOPPING = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}
shared = pytest.mark.skipif(
    not SAMPLES.exists(), reason="no sample data beside the checkout (../shared)"
)


def sse(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def replay(stream: bytes, *, then: str = "end") -> Script:
    """Send a captured stream; then end it, hang, or cut the connection."""

    async def script(call: Call) -> None:
        await call.head(200, "text/event-stream; charset=utf-8")
        await call.chunk(stream)
        if then == "hang":
            await call.peer_closed.wait()
        elif then == "cut":
            call.close()
        else:
            await call.end()

    return script


def capture(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def whole_events(tail: str) -> bytes:
    """Give the whole events of the captured end of a stream."""
    return b"".join(
        b"data: " + part.encode() + b"\n\n"
        for part in tail.rstrip("\n").split("\n\n")
        for part in [part.removeprefix("data: ")]
        if part.startswith(("{", "[DONE]"))
    )


async def assert_served_elsewhere(rig: Rig, bad: Script, body: dict[str, Any]) -> None:
    """Whichever of the two is asked first, the client gets the good one's answer."""
    await rig.start(bad, obliging())
    rig.configure(policy="round_robin")
    replies = [await rig.ask(body) for _ in range(2)]
    assert [r.status for r in replies] == [200, 200]
    assert {r.headers["x-signalbox-replica"] for r in replies} == {"r1"}


# -- a stream that ends well, and one that does not ------------------------------------------------


async def test_done_after_an_error_event_is_no_good_end(rig: Rig) -> None:
    """vLLM whose core died: tokens, an error event, [DONE]."""
    await rig.start(replay(event("a") + event("b") + sse(CORE_DEAD) + DONE))
    reply = await rig.ask(STREAM)
    assert reply.text == "ab"
    assert "EngineCore" in reply.events[-1]
    assert "[DONE]" not in reply.events
    assert rig.records[0].status == 502
    assert rig.replica().exclusion(0.0).startswith("dead")


@pytest.mark.shared
@shared
async def test_the_captured_end_of_a_dead_vllm_is_an_error(rig: Rig) -> None:
    requests = capture("vllm/engine_crash.json")["requests"]
    tail = next(r["tail"] for r in requests if r["name"] == "stream in flight")
    await rig.start(replay(whole_events(tail)))
    reply = await rig.ask(STREAM)
    assert "EngineCore" in reply.events[-1]
    assert "[DONE]" not in reply.events
    assert rig.records[0].status == 502


@pytest.mark.parametrize(
    "payload",
    [
        {"error": {"object": "error", "message": "The request queue is full.", "code": 503}},
        CORE_DEAD,
        {"error": "generation failed", "error_type": "generation"},
    ],
    ids=["full", "dead", "tgi"],
)
@pytest.mark.parametrize("role", [b"", event("")], ids=["at once", "after the role"])
async def test_an_error_under_a_200_before_the_first_token_is_tried_elsewhere(
    rig: Rig, payload: Any, role: bytes
) -> None:
    await assert_served_elsewhere(rig, replay(role + sse(payload) + DONE), STREAM)


@pytest.mark.shared
@shared
async def test_the_captured_overflow_of_sglang_is_tried_elsewhere(rig: Rig) -> None:
    text = (SAMPLES / "sglang" / "overflow.json").read_text()
    bodies = [v for v in _strings(json.loads(text)) if v.startswith('data: {"error"')]
    assert bodies
    await assert_served_elsewhere(rig, replay(bodies[0].encode()), STREAM)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _strings(item)]


async def test_a_clients_fault_under_a_200_is_its_own(rig: Rig) -> None:
    """One attempt, the engine's words and status, nothing held against it."""
    fault = {"error": {"message": "prompt too long", "type": "BadRequestError", "code": 400}}
    await rig.start(replay(sse(fault) + DONE), replay(sse(fault) + DONE))
    reply = await rig.ask(STREAM)
    assert (reply.status, reply.error["message"]) == (400, "prompt too long")
    assert sum(rig.calls) == 1
    assert [r.errors_total for r in rig.fleet.replicas.values()] == [0, 0]


@pytest.mark.parametrize("spaced", [False, True])
async def test_an_aborted_plain_answer_is_made_again_elsewhere(rig: Rig, spaced: bool) -> None:
    """vLLM and SGLang answer 200 when somebody aborts what they compute."""
    answer = completion("half")
    answer["choices"][0]["finish_reason"] = "abort"
    separators = None if spaced else (",", ":")

    async def aborted(call: Call) -> None:
        await call.answer(200, json.dumps(answer, separators=separators).encode())

    await assert_served_elsewhere(rig, aborted, chat())


async def test_a_text_about_aborting_is_a_text(rig: Rig) -> None:
    async def script(call: Call) -> None:
        await call.answer(200, completion('say "finish_reason": "abort" "abort"'))

    await rig.start(script)
    assert (await rig.ask(chat())).status == 200


async def test_an_aborted_stream_ends_with_a_typed_error(rig: Rig) -> None:
    await rig.start(replay(event("a") + event("b", finish="abort") + DONE))
    reply = await rig.ask(STREAM)
    assert reply.text == "a"
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    assert rig.records[0].status == 502


@pytest.mark.shared
@shared
async def test_the_captured_abort_of_sglang_is_no_answer(rig: Rig) -> None:
    aborted = [e for e in capture("sglang/control.json") if e.get("note") == "the aborted request"]
    plain, stream = (e["body"] for e in aborted)

    async def script(call: Call) -> None:
        await (replay(stream.encode()) if call.json().get("stream") else failing(200, plain))(call)

    await rig.start(script)
    rig.configure(max_retries=0)
    assert (await rig.ask(chat())).status == 502
    reply = await rig.ask(STREAM)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"


@pytest.mark.shared
@shared
@pytest.mark.parametrize("name", ["vllm/sigterm_default.json", "llama_cpp/sigterm.json"])
async def test_a_stream_that_hangs_after_sigterm_meets_the_stall_limit(rig: Rig, name: str) -> None:
    requests = capture(name)["requests"]
    tail = next(r["tail"] for r in requests if r["name"] == "stream in flight")
    await rig.start(replay(event("a") + whole_events(tail), then="hang"))
    rig.configure(stall_limit_s=0.2)
    reply = await rig.ask(STREAM)
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_too_slow"
    assert rig.records[0].status == 504
    assert rig.replica().errors_total == 1


@pytest.mark.shared
@shared
@pytest.mark.parametrize("name", ["chat_stream.sse", "completions_stream.sse"])
async def test_transformers_ends_well_without_done_and_with_its_usage(rig: Rig, name: str) -> None:
    text = (SAMPLES / "transformers_serve" / name).read_bytes()
    blocks = [b.lstrip(b"\n") for b in text.split(b"\n\n") if b.strip()]
    stream = b"".join(b + b"\n\n" for b in blocks if not b.startswith(b"#"))
    await rig.start(replay(stream))
    reply = await rig.ask(chat(stream=True, stream_options={"include_usage": True}))
    assert (reply.status, reply.body) == (200, stream)
    assert (rig.records[0].status, rig.records[0].estimated) == (200, False)


async def test_of_two_choices_both_must_end(rig: Rig) -> None:
    """n=2, cut after the first one's end: not a whole answer."""
    first = event("a", finish="stop")
    second = first.replace(b'"index":0', b'"index":1')
    await rig.start(replay(event("x") + first, then="cut"))
    reply = await rig.ask(chat(stream=True, n=2))
    assert json.loads(reply.events[-1])["error"]["code"] == "engine_failed"
    rig.engines[0].script = replay(event("x") + first + second, then="cut")
    reply = await rig.ask(chat(stream=True, n=2))
    assert "error" not in reply.events[-1]


# -- overload, drain, keys -------------------------------------------------------------------------


@pytest.mark.shared
@shared
async def test_the_captured_refusal_of_vllm_gets_a_retry_after(rig: Rig) -> None:
    streams = capture("vllm/overflow.json")["streams"]
    refusal = next(s for s in streams if s["status"] == 503)
    assert "retry-after" not in {name.lower() for name in refusal["headers"]}
    await rig.start(failing(503, refusal["body"]))
    rig.configure(overload="reject")
    reply = await rig.ask(STREAM)
    assert (reply.status, reply.json()) == (503, refusal["body"])
    assert reply.headers["retry-after"] == "1"
    assert rig.replica().breaker.state == "closed"


@pytest.mark.parametrize("body", [chat(), STREAM], ids=["plain", "stream"])
async def test_an_engine_that_drains_gets_nothing_more_and_no_blame(
    rig: Rig, body: dict[str, Any]
) -> None:
    """vLLM after SIGTERM: /health 200, every new request a 500."""
    await rig.start(failing(500, STOPPING), obliging())
    rig.configure(policy="round_robin")
    replies = [await rig.ask(body) for _ in range(6)]
    assert {r.status for r in replies} == {200}
    assert rig.calls == [1, 6]
    assert rig.replica(0).exclusion(0.0).startswith("draining")
    assert "cannot schedule" in rig.replica(0).exclusion(0.0)
    assert (rig.replica(0).errors_total, rig.replica(0).breaker.state) == (0, "closed")


async def test_the_only_engine_of_a_pool_that_drains_is_busy_not_broken(rig: Rig) -> None:
    await rig.start(failing(500, STOPPING))
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (503, "engine_busy")
    assert reply.headers["retry-after"] == "1"
    again = await rig.ask(chat())
    assert (again.status, again.error["code"]) == (503, "no_replica")
    assert "draining" in again.error["message"]


async def test_a_500_about_the_request_is_not_tried_again(rig: Rig) -> None:
    fault = {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16.", "code": 500}}
    await rig.start(failing(500, fault), failing(500, fault))
    reply = await rig.ask(chat())
    assert (reply.status, reply.json()) == (500, fault)
    assert sum(rig.calls) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": "Unauthorized"},
        {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}},
    ],
    ids=["vllm", "llama.cpp"],
)
async def test_our_own_wrong_key_is_never_the_clients(rig: Rig, refusal: Any) -> None:
    await rig.start(failing(401, refusal), obliging())
    rig.configure(policy="round_robin")
    for _ in range(2):
        assert (await rig.ask(chat())).status == 200
    rig.set_endpoints(rig.endpoint(0))
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")


# -- models and adapters that are not there --------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "nope"},
        {"model": "lora-a"},
        {"model": "m:lora-a"},
        {"lora": "lora-a"},
        {"lora_path": "lora-a"},
        {"lora_path": "/etc/passwd"},
        {"lora": [{"id": 0, "scale": 1.0}]},
        {"lora_path": "x", "max_tokens": "odd"},
    ],
    ids=str,
)
async def test_no_engine_sees_a_model_or_adapter_that_is_not_in_the_table(
    rig: Rig, engine: str, changes: dict[str, Any]
) -> None:
    """R39: SGLang and llama.cpp would answer with the base model, as a 200."""
    await rig.start(obliging())
    rig.set_endpoints(rig.endpoint(0, engine=engine, adapters=("lora-a",)))
    reply = await rig.ask(chat(**changes))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert rig.calls == [0]


@pytest.mark.parametrize("empty", [None, "", []])
async def test_an_empty_adapter_field_is_none(rig: Rig, empty: Any) -> None:
    await rig.start(obliging())
    assert (await rig.ask(chat(lora_path=empty, lora=empty))).status == 200


# -- engines that work on after their client left --------------------------------------------------


async def _leave(rig: Rig, body: dict[str, Any]) -> None:
    client = await RawClient.open(rig.port)
    client.post(body)
    await rig.engines[0].called(len(rig.engines[0].calls) + 1)
    client.close()
    await until(lambda: rig.proxy.running_requests == 0)


@pytest.mark.parametrize("engine", ["sglang", "llamacpp"])
async def test_a_plain_request_keeps_its_charge_while_its_engine_works_on(
    rig: Rig, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_traits, "LINGER_S", {engine: 0.3})
    await rig.start(hanging)
    rig.set_endpoints(rig.endpoint(0, engine=engine))
    await _leave(rig, chat())
    assert rig.replica().inflight_requests == 1
    assert rig.replica().inflight_tokens > 0
    await until(lambda: rig.replica().inflight_requests == 0)
    assert rig.replica().inflight_tokens == 0


@pytest.mark.parametrize(
    ("engine", "body"), [("vllm", chat()), ("vllm", STREAM), ("sglang", STREAM)], ids=str
)
async def test_what_stops_with_its_connection_frees_its_charge_at_once(
    rig: Rig, engine: Any, body: dict[str, Any]
) -> None:
    await rig.start(hanging)
    rig.set_endpoints(rig.endpoint(0, engine=engine))
    await _leave(rig, body)
    assert rig.replica().inflight_requests == 0


def test_every_charge_that_lingers_is_bounded() -> None:
    bounds: Callable[..., float] = engine_traits.linger_s
    assert 0 < bounds("sglang", is_stream=False) <= 10
    assert bounds("sglang", is_stream=True) == bounds("vllm", is_stream=False) == 0


async def test_a_finished_answer_never_lingers(rig: Rig) -> None:
    await rig.start(obliging(gap_s=0.0))
    rig.set_endpoints(rig.endpoint(0, engine="sglang"))
    for body in (chat(), STREAM):
        assert (await rig.ask(body)).status == 200
        await asyncio.sleep(0)
    assert rig.replica().inflight_requests == 0


async def test_a_picture_for_a_model_of_text_is_the_clients_fault(rig: Rig) -> None:
    """llama.cpp says 500: the client gets its words, and no replica is blamed or asked again."""
    message = "image input is not supported - hint: you may need to provide the mmproj"
    error = {"error": {"code": 500, "message": message, "type": "server_error"}}
    await rig.start(failing(500, error), failing(500, error))
    for _ in range(8):  # more than the breaker takes
        reply = await rig.ask(chat())
        assert (reply.status, json.loads(reply.body)) == (500, error)
    assert sum(len(engine.calls) for engine in rig.engines) == 8
    good = obliging()
    for engine in rig.engines:
        engine.script = good
    assert (await rig.ask(chat())).status == 200
