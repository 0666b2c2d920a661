"""The life of a request as its record tells it: kept for failures, a share, and traced requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from routing_agent import wire
from routing_agent.core.sampling import threshold
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import (
    Call,
    event,
    failing,
    hanging,
    in_turn,
    obliging,
)

STREAM = chat(stream=True)
TRACED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNTRACED = TRACED[:-1] + "0"


class Kept(Rig):
    """A rig that keeps the lives of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[wire.RequestRecord] = []
        self.proxy.on_record = self.lives.append
        self.proxy.keep_below = threshold(1.0)

    async def life(self, number: int = 1) -> wire.RequestRecord:
        """Wait for the nth record."""
        await until(lambda: len(self.lives) >= number)
        return self.lives[number - 1]


@pytest.fixture
async def rig() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    await made.stop()


def names(record: wire.RequestRecord) -> list[str]:
    return [stage.stage for stage in record.stages]


def assert_without_gaps(record: wire.RequestRecord) -> None:
    """Check that the stages cover the request from its receipt to its end."""
    assert sum(stage.duration_s for stage in record.stages) == pytest.approx(record.e2e_s, abs=1e-4)
    for one, following in zip(record.stages, record.stages[1:], strict=False):
        assert one.at + one.duration_s == pytest.approx(following.at, abs=0.0025)
    assert record.stages[0].at == record.received_at


async def test_a_stream_passes_through_all_stages(rig: Kept) -> None:
    await rig.start(obliging(), obliging())
    before = time.time()
    reply = await rig.ask(STREAM, x_request_id="mine-1")
    record = await rig.life()
    assert names(record) == ["RECEIVED", "BOUND", "PREFILL", "DECODE", "DONE"]
    assert_without_gaps(record)
    assert before - 0.01 <= record.received_at <= time.time() + 0.01
    assert [s.stage for s in record.stages if s.estimated] == ["PREFILL"]
    assert (record.request_id, record.kept, record.status) == ("mine-1", "sampled", 200)
    assert (record.model, record.tenant, record.stream) == ("m", "local", True)
    assert record.output_tokens > 0
    assert record.ttft_s is not None
    assert record.decision.replica == reply.headers["x-signalbox-replica"]
    assert (record.decision.policy, record.decision.pool) == ("expected_ttft", "p")
    assert record.decision.candidates_total == 2
    chosen, other = record.decision.candidates
    assert (chosen.replica, {chosen.replica, other.replica}) == (
        record.decision.replica,
        {"r0", "r1"},
    )
    assert chosen.terms["held_tokens"] == 0.0  # as compared, before the request was charged
    assert [(a.replica, a.outcome) for a in record.attempts] == [(chosen.replica, "good")]


async def test_a_plain_answer_shows_no_first_token_and_says_so(rig: Kept) -> None:
    await rig.start()
    await rig.ask(chat())
    record = await rig.life()
    assert names(record) == ["RECEIVED", "BOUND", "PREFILL", "DONE"]
    assert "one piece" in record.stages[2].reason
    assert_without_gaps(record)


async def test_a_retry_is_told_with_its_reason(rig: Kept) -> None:
    await rig.start(failing(500), obliging())
    for _ in range(2):
        assert (await rig.ask(STREAM)).status == 200
    await rig.life(2)
    record = next(r for r in rig.lives if len(r.attempts) == 2)
    first, second = record.attempts
    assert (first.replica, first.outcome, first.next) == (
        "r0",
        "engine_error",
        "after engine error",
    )
    assert first.reason == "the engine answered 500"
    assert (second.replica, second.outcome, second.route) == ("r1", "good", "retry")
    assert names(record) == [
        "RECEIVED", "BOUND", "PREFILL", "QUEUED", "BOUND", "PREFILL", "DECODE", "DONE",
    ]  # fmt: skip
    assert_without_gaps(record)
    excluded = {c.replica: c.excluded for c in record.decision.candidates}
    assert excluded == {"r1": "", "r0": "already tried for this request"}


async def test_a_refused_connection_is_an_attempt_without_prefill(rig: Kept) -> None:
    await rig.start(obliging(), obliging())
    rig.configure(max_retries=0)
    rig.set_endpoints(wire.Endpoint(replica="r9", url="http://127.0.0.1:1"))
    assert (await rig.ask(STREAM)).status == 502
    record = await rig.life()
    assert names(record) == ["RECEIVED", "BOUND", "FAILED"]
    assert record.attempts[0].outcome == "connect"
    assert record.attempts[0].next == "1 attempts made"
    assert (record.status, record.error, record.kept) == (502, "engine_failed", "failure")
    assert_without_gaps(record)


async def test_every_failure_is_kept_and_of_the_rest_only_the_share(rig: Kept) -> None:
    rig.proxy.keep_below = 0
    await rig.start(in_turn(obliging(), failing(500), obliging()))
    rig.configure(max_retries=0, breaker_failures=100)
    assert [(await rig.ask(chat())).status for _ in range(3)] == [200, 502, 200]
    assert (await rig.ask(chat(model="unknown"))).status == 404
    await until(lambda: len(rig.records) == 4)
    assert [(r.status, r.kept) for r in rig.lives] == [(502, "failure")]
    assert rig.lives[0].decision.reason  # candidates are for sampled ones, the reason for all
    assert rig.lives[0].decision.candidates == ()


async def test_an_engines_own_words_stay_out_of_the_record(rig: Kept) -> None:
    async def talkative(call: Call) -> None:
        await call.answer(500, {"error": {"message": "cannot tokenize: my secret prompt"}})

    await rig.start(talkative)
    rig.configure(max_retries=0)
    await rig.ask(chat(messages=[{"role": "user", "content": "my secret prompt"}]))
    assert b"secret" not in msgspec.json.encode(await rig.life())


async def test_no_key_prompt_or_output_is_in_a_record(rig: Kept) -> None:
    await rig.start()
    await rig.ask(
        chat(messages=[{"role": "user", "content": "xyzzy-prompt"}], user="xyzzy-user"),
        authorization="Bearer xyzzy-key",
    )
    assert b"xyzzy" not in msgspec.json.encode(await rig.life())


async def test_a_client_that_left_is_the_clients_doing(rig: Kept) -> None:
    await rig.start(hanging)
    client = await RawClient.open(rig.port)
    client.post(STREAM)
    await rig.engines[0].called(1)
    client.close()
    record = await rig.life()
    assert (record.status, record.kept) == (499, "sampled")
    assert names(record) == ["RECEIVED", "BOUND", "PREFILL", "FAILED"]
    assert record.attempts[0].outcome == "left"
    rig.proxy.keep_below = 0
    client = await RawClient.open(rig.port)
    client.post(STREAM)
    await rig.engines[0].called(2)
    client.close()
    await until(lambda: len(rig.records) == 2)
    assert len(rig.lives) == 1


async def test_a_wait_in_the_queue_is_a_stage(rig: Kept) -> None:
    release = asyncio.Event()

    async def held(call: Call) -> None:
        await release.wait()
        await obliging()(call)

    await rig.start(held)
    rig.configure(max_concurrency_per_replica=1)
    first = asyncio.create_task(rig.ask(chat()))
    await rig.engines[0].called(1)
    second = asyncio.create_task(rig.ask(STREAM, x_request_id="second"))
    await until(lambda: rig.proxy.running_requests == 2)
    release.set()
    assert {(await first).status, (await second).status} == {200}
    await rig.life(2)
    record = next(r for r in rig.lives if r.request_id == "second")
    assert names(record) == ["RECEIVED", "QUEUED", "BOUND", "PREFILL", "DECODE", "DONE"]
    assert record.stages[1].duration_s == pytest.approx(record.queue_wait_s, abs=0.002)
    assert record.queue_wait_s > 0
    assert_without_gaps(record)


async def test_a_queue_timeout_says_how_long_and_why(rig: Kept) -> None:
    await rig.start(hanging)
    rig.configure(max_concurrency_per_replica=1, queue_deadline_s=0.2)
    holder = await RawClient.open(rig.port)
    holder.post(STREAM)
    await rig.engines[0].called(1)
    assert (await rig.ask(STREAM)).status == 503
    record = await rig.life()
    assert (record.error, record.kept) == ("queue_timeout", "failure")
    assert names(record) == ["RECEIVED", "QUEUED", "FAILED"]
    assert record.stages[1].duration_s >= 0.2
    assert record.attempts == ()
    assert record.decision.reason.startswith("full")
    assert record.decision.candidates[0].excluded.startswith("full")
    holder.close()


async def test_without_a_usable_replica_the_record_says_why(rig: Kept) -> None:
    await rig.start()
    rig.set_endpoints(rig.endpoint(0, state="ejected"))
    assert (await rig.ask(chat())).status == 503
    record = await rig.life()
    assert record.error == "no_replica"
    assert "ejected by an operator" in record.detail
    assert record.decision.candidates[0].excluded == "ejected by an operator"


async def test_an_agent_without_a_table_keeps_its_refusals(rig: Kept) -> None:
    rig.port = await rig.proxy.start("127.0.0.1", 0)
    for headers in ({}, {"x_request_id": "mine"}):
        reply = await rig.ask(chat(), **headers)
        assert reply.status == 503
        assert reply.headers["x-request-id"] == rig.lives[-1].request_id
    assert [(r.error, r.kept) for r in rig.lives] == [("no_table", "failure")] * 2
    assert rig.lives[1].request_id == "mine"


async def test_a_stream_that_breaks_off_is_a_failure(rig: Kept) -> None:
    async def breaking(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("x"))
        call.reset()

    rig.proxy.keep_below = 0
    await rig.start(breaking)
    await rig.ask(STREAM)
    record = await rig.life()
    assert (record.kept, record.attempts[0].outcome) == ("failure", "broken")
    assert record.attempts[0].next == "its answer had begun"
    assert names(record)[-2:] == ["DECODE", "FAILED"]


@pytest.mark.parametrize(
    ("traceparent", "kept"), [(TRACED, ["traced"]), (UNTRACED, []), ("", []), ("junk", [])]
)
async def test_a_callers_sampled_flag_keeps_a_request(
    rig: Kept, traceparent: str, kept: list[str]
) -> None:
    rig.proxy.keep_below = 0
    await rig.start()
    await rig.ask(chat(), **({"traceparent": traceparent} if traceparent else {}))
    await until(lambda: len(rig.records) == 1)
    assert [r.kept for r in rig.lives] == kept


async def test_our_span_stands_between_the_callers_and_the_engines(rig: Kept) -> None:
    await rig.start()
    await rig.ask(chat(), traceparent=TRACED, tracestate="a=1, b@x=2")
    await rig.ask(chat())
    record, own = await rig.life(1), await rig.life(2)
    assert (record.trace_id, record.parent_span_id) == (TRACED[3:35], TRACED[36:52])
    sent = rig.engines[0].calls[0]
    assert sent.header("tracestate") == "a=1, b@x=2"
    version, trace_id, parent, flags = (sent.header("traceparent") or "").split("-")
    assert (version, trace_id, flags) == ("00", record.trace_id, "01")
    assert parent not in (record.span_id, record.parent_span_id)  # the attempt's span
    assert (own.trace_id, own.parent_span_id) == (own.uid, "")
    assert len(own.span_id) == 16
    again = rig.engines[0].calls[1].header("traceparent") or ""
    assert again == f"00-{own.trace_id}-{own.attempts[0].span_id}-01"
    assert own.attempts[0].span_id != own.span_id


async def test_a_request_that_is_not_sampled_says_so_to_the_engine(rig: Kept) -> None:
    rig.proxy.keep_below = 0
    await rig.start()
    await rig.ask(chat())
    await rig.ask(chat(), traceparent=UNTRACED)
    first, second = (call.header("traceparent") or "" for call in rig.engines[0].calls)
    assert (len(first), first[-3:], second[-3:]) == (55, "-00", "-00")
    assert second[3:35] == UNTRACED[3:35]


@pytest.mark.parametrize(
    "headers",
    [
        {"tracestate": "a=1"},  # without a traceparent it means nothing
        {"traceparent": "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "tracestate": "a=1"},
        {"traceparent": TRACED.upper(), "tracestate": "a=1"},
        {"traceparent": "ff" + TRACED[2:], "tracestate": "a=1"},
        {"traceparent": TRACED + "-more", "tracestate": "a=1"},
        {"traceparent": TRACED, "tracestate": "A=1"},
        {"traceparent": TRACED, "tracestate": "a=1,a=2"},
        {"traceparent": TRACED, "tracestate": ",".join(f"k{i}=v" for i in range(33))},
        {"traceparent": TRACED, "tracestate": "a=" + "x" * 600},
    ],
)
async def test_an_unsound_context_or_state_goes_no_further(
    rig: Kept, headers: dict[str, Any]
) -> None:
    await rig.start()
    await rig.ask(chat(), **headers)
    sent = rig.engines[0].calls[0]
    assert sent.header("tracestate") is None
    assert len(sent.header("traceparent") or "") == 55


async def test_a_later_version_of_the_trace_context_is_understood(rig: Kept) -> None:
    await rig.start()
    await rig.ask(chat(), traceparent="cc" + TRACED[2:] + "-what-comes-later")
    assert (await rig.life()).trace_id == TRACED[3:35]


async def test_a_keeper_that_fails_costs_no_request(rig: Kept) -> None:
    def failing_keeper(record: wire.RequestRecord) -> None:
        raise ValueError("disk on fire")

    rig.proxy.on_record = failing_keeper
    await rig.start()
    assert (await rig.ask(chat())).status == 200
