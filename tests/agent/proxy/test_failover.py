"""Failures of engines: what is tried again, where, and what is held against whom."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import (
    DONE,
    Call,
    closing,
    completion,
    event,
    failing,
    hanging,
    in_turn,
    obliging,
)

STREAM = chat(stream=True)
SGLANG_FULL = (
    b'data: {"error": {"object": "error", "message": "The request queue is full.",'
    b' "type": "SERVICE_UNAVAILABLE", "code": 503}}\n\n'
)


async def headers_then_close(call: Call) -> None:
    await call.head(200, "text/event-stream")
    call.close()


async def error_event_first(call: Call) -> None:
    await call.stream(SGLANG_FULL, DONE)


@pytest.mark.parametrize(
    "bad", [closing, failing(503), failing(500), headers_then_close, error_event_first]
)
async def test_a_stream_that_cannot_start_is_served_elsewhere(rig: Rig, bad: object) -> None:
    """R05: the client sees one clean stream; each engine is asked once."""
    await rig.start(bad, obliging())  # type: ignore[arg-type]
    rig.configure(policy="round_robin")
    replies = [await rig.ask(STREAM) for _ in range(2)]
    assert [r.status for r in replies] == [200, 200]
    assert [r.text for r in replies] == ["one two three"] * 2
    assert rig.calls == [1, 2]
    assert sorted(r.headers["x-signalbox-route"] for r in replies) == ["load", "retry"]


async def test_a_refused_connection_is_served_elsewhere(rig: Rig) -> None:
    """R05 (a)."""
    await rig.start(obliging(), obliging())
    rig.configure(policy="round_robin")
    await rig.engines[0].stop()
    for _ in range(2):
        assert (await rig.ask(STREAM)).text == "one two three"
    assert rig.replica(0).errors_total == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_client_errors_pass_unchanged_and_trip_nothing(rig: Rig, status: int) -> None:
    """R12: the engine's own words, one attempt, breaker closed."""
    body = {"error": {"message": "context length", "type": "BadRequestError", "code": status}}
    await rig.start(failing(status, body), obliging())
    rig.set_endpoints(rig.endpoint(0))
    for _ in range(20):
        reply = await rig.ask(chat())
        assert (reply.status, reply.json()) == (status, body)
    assert rig.calls == [20, 0]
    assert rig.replica().breaker.state == "closed"
    assert rig.replica().errors_total == 0
    rig.engines[0].script = obliging()
    assert (await rig.ask(chat())).status == 200


@pytest.mark.parametrize("status", [503, 429])
async def test_the_only_replica_that_is_busy_passes_its_answer_on(rig: Rig, status: int) -> None:
    """R13: back-pressure with Retry-After; the first request after recovery goes through.

    A pool that queues lets them wait instead: `test_busy_engines.py`.
    """
    await rig.start(failing(status, None, "retry-after: 7"))
    rig.configure(overload="reject")
    for _ in range(10):
        reply = await rig.ask(chat())
        assert (reply.status, reply.headers["retry-after"]) == (status, "7")
    assert rig.replica().breaker.state == "closed"
    rig.engines[0].script = obliging()
    assert (await rig.ask(chat())).status == 200
    assert rig.calls == [11]


async def test_a_busy_engine_that_names_no_pause_gets_one(rig: Rig) -> None:
    """R13: vLLM's 503 carries no Retry-After."""
    await rig.start(failing(503))
    rig.configure(overload="reject")
    assert (await rig.ask(chat())).headers["retry-after"] == "1"


async def test_a_stream_refused_inside_a_200_gets_its_status_back(rig: Rig) -> None:
    """R13: SGLang says "queue full" in an event under a 200."""
    await rig.start(error_event_first)
    rig.configure(overload="reject")
    reply = await rig.ask(STREAM)
    assert (reply.status, reply.error["message"]) == (503, "The request queue is full.")
    assert rig.replica().breaker.state == "closed"


@pytest.mark.parametrize("status", [503, 429])
async def test_overload_is_served_elsewhere(rig: Rig, status: int) -> None:
    """R13: an idle replica takes what a busy one refuses."""
    await rig.start(failing(status), obliging())
    for _ in range(10):
        assert (await rig.ask(chat())).status == 200
    assert rig.replica(0).breaker.state == "closed"


async def test_five_failures_open_the_breaker_and_others_serve(rig: Rig) -> None:
    """R14: an open breaker keeps its replica out."""
    await rig.start(failing(500), obliging())
    rig.configure(policy="round_robin")
    for _ in range(14):
        assert (await rig.ask(chat())).status == 200
    assert rig.replica(0).breaker.state == "open"
    assert rig.replica(0).ejections_total == 1
    assert rig.calls[0] == 5


async def test_a_recovering_replica_gets_one_trial_at_a_time(rig: Rig) -> None:
    """R14: 50 requests arrive at the end of the cool-down; one goes to the trial."""
    release = asyncio.Event()

    async def slow(call: Call) -> None:
        await release.wait()
        await call.answer(200, completion())

    await rig.start(failing(500), obliging())
    rig.configure(policy="least_requests", breaker_open_s=0.05, breaker_failures=1)
    while rig.replica(0).breaker.state != "open":
        assert (await rig.ask(chat())).status == 200
    rig.engines[0].script = slow
    seen = len(rig.engines[0].calls)
    await until(lambda: rig.replica(0).breaker.admits(asyncio.get_running_loop().time()))
    asked = [asyncio.create_task(rig.ask(chat())) for _ in range(50)]
    await until(lambda: len(rig.records) >= 49)
    assert len(rig.engines[0].calls) - seen == 1
    release.set()
    assert {(await reply).status for reply in asked} == {200}
    while rig.replica(0).breaker.state != "closed":
        assert (await rig.ask(chat())).status == 200


async def test_a_client_that_leaves_a_trial_frees_it(rig: Rig) -> None:
    """R14: a trial without a verdict is given to the next request."""
    await rig.start(failing(500), obliging())
    rig.configure(breaker_open_s=0.05, breaker_failures=1, policy="round_robin")
    while rig.replica(0).breaker.state != "open":
        await rig.ask(chat())
    rig.engines[0].script = hanging
    seen = len(rig.engines[0].calls)
    while len(rig.engines[0].calls) == seen:
        client = await RawClient.open(rig.port)
        client.post(chat())
        await until(lambda: rig.proxy.running_requests or len(rig.records))
        await asyncio.sleep(0.02)
        client.close()
    await until(lambda: not rig.replica(0).breaker.trial_running)


async def test_retries_go_to_another_replica_each_time(rig: Rig) -> None:
    """R15 (a): two bad, one good: success, none tried twice, the body the same."""
    await rig.start(failing(502), failing(502), obliging())
    for i in (1, 2):
        rig.replica(i).endpoint = rig.endpoint(i, weight=0.001 / i)
    reply = await rig.ask(chat(seed=9007199254740993))
    assert reply.status == 200
    assert all(n <= 1 for n in rig.calls)
    assert len({call.body for e in rig.engines for call in e.calls}) == 1
    assert rig.records[0].attempts == sum(rig.calls)


async def test_attempts_are_bounded_and_spaced(rig: Rig) -> None:
    """R15 (b): exactly three attempts, with growing pauses, and one error."""
    await rig.start(failing(502), failing(502), failing(502))
    rig.configure(retry_backoff_s=0.1)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert rig.calls == [1, 1, 1]
    times = sorted(e.calls[0].arrived_at for e in rig.engines)
    # Lower bounds only: the pauses are at least 0.1 s x 2 with a jitter of a fifth.
    assert times[1] - times[0] >= 0.08
    assert times[2] - times[1] >= 0.16
    assert rig.records[0].attempts == 3


async def test_many_failing_clients_never_multiply_attempts(rig: Rig) -> None:
    """R15 (d): at most three attempts a request, and the budget bounds the sum."""
    await rig.start(failing(502), failing(502), failing(502))
    rig.configure(breaker_failures=1000)
    replies = await asyncio.gather(*(rig.ask(chat()) for _ in range(100)))
    assert {r.status for r in replies} == {502}
    assert max(r.attempts for r in rig.records) <= 3
    assert 100 <= sum(rig.calls) <= 100 + 30 + 10 + 40


async def test_the_only_replica_is_tried_again_after_a_break(rig: Rig) -> None:
    """R15: never the same replica twice, unless it is the only one."""
    await rig.start(in_turn(closing, obliging()))
    assert (await rig.ask(chat())).status == 200
    assert rig.calls == [2]


async def test_an_engine_that_closes_idle_connections_costs_nothing(rig: Rig) -> None:
    """R16: each prompt runs once, nothing is held against the engine."""
    await rig.start(obliging(), engine={"idle_limit_s": 0.05})
    for i in range(40):
        reply = await rig.ask(chat(stream=i % 2 == 0))
        assert reply.status == 200
        idle = rig.engines[0].connections[-1]
        if i % 3:  # ask again right when the engine closes
            await until(lambda c=idle: c.is_closed)
    assert len(rig.engines[0].calls) == 40
    assert rig.replica().errors_total == 0
    assert {r.attempts for r in rig.records} == {1}


async def test_an_engine_that_closes_after_each_answer_costs_nothing(rig: Rig) -> None:
    """R16, variant: it does not announce that."""

    async def once(call: Call) -> None:
        await obliging()(call)
        call.close()

    await rig.start(once)
    client = await RawClient.open(rig.port)
    for i in range(40):
        client.post(chat(stream=i % 2 == 0))
        assert (await client.reply()).status == 200
    client.close()
    assert len(rig.engines[0].calls) == 40
    assert rig.replica().errors_total == 0


async def test_a_connection_that_dies_at_once_is_replaced(rig: Rig) -> None:
    """R16: the close crosses our request on the wire."""
    await rig.start(in_turn(obliging(), closing, obliging()))
    assert (await rig.ask(chat())).status == 200
    assert (await rig.ask(chat())).status == 200
    assert rig.replica().errors_total == 0


async def test_an_unusable_replica_gets_no_session(rig: Rig) -> None:
    """R31: breaker, drain or removal move a session once, to one other replica."""
    await rig.start(obliging(), obliging(), obliging())
    rig.configure(policy="consistent_hash")

    async def home() -> str:
        reply = await rig.ask(chat(), x_session_id="s1")
        assert reply.status == 200
        return reply.headers["x-signalbox-replica"]

    first = await home()
    assert {await home() for _ in range(5)} == {first}
    i = int(first[1:])
    rig.set_endpoints(*(rig.endpoint(j, state="draining" if j == i else "ready") for j in range(3)))
    moved = {await home() for _ in range(5)}
    assert len(moved) == 1
    assert moved != {first}
    rig.set_endpoints(*(rig.endpoint(j) for j in range(3) if j != i))
    assert {await home() for _ in range(5)} == moved
    rig.set_endpoints(*(rig.endpoint(j) for j in range(3)))
    assert {await home() for _ in range(5)} == moved  # its cache is there now
    (other,) = moved
    for _ in range(5):
        replica = rig.replica(int(other[1:]))
        replica.note_failure(rig.proxy.now, trial=False, may_open=True)
    again = {await home() for _ in range(5)}
    assert len(again) == 1
    assert again != moved


async def test_an_unhealthy_replica_keeps_its_streams_and_gets_no_new_ones(rig: Rig) -> None:
    """R17: probes decide about new requests only."""
    go = asyncio.Event()

    async def long(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await go.wait()
        await call.chunk(event("b", finish="stop"))
        await call.chunk(DONE)
        await call.end()

    await rig.start(long, obliging())
    rig.configure(probe_failures=3, probe_interval_s=0.001)
    rig.replica(1).note_health(False, "off", 0.0)
    running = asyncio.create_task(rig.ask(STREAM))
    await rig.engines[0].called()
    rig.replica(1).note_health(True, "on", 0.0)
    replica = rig.replica(0)
    later = rig.proxy.now + 60
    for _ in range(2):
        replica.note_probe(False, "time-out", later)
        assert replica.exclusion(later) == ""
    replica.note_probe(False, "time-out", later)
    assert "unhealthy" in replica.exclusion(later)
    for _ in range(4):
        assert (await rig.ask(STREAM)).headers["x-signalbox-replica"] == "r1"
    go.set()
    assert (await running).text == "ab"
    replica.note_probe(True, "ok", later)
    assert replica.exclusion(later) != ""
    replica.note_probe(True, "ok", later)
    assert replica.exclusion(later) == ""


async def test_when_everything_is_unhealthy_the_answer_says_so(rig: Rig) -> None:
    """No replica: 503 with the reasons."""
    await rig.start(obliging(), obliging())
    rig.replica(0).note_health(False, "port closed", 0.0)
    rig.replica(1).note_health(False, "port closed", 0.0)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (503, "no_replica")
    assert "2 of 2: unhealthy: port closed" in reply.error["message"]
    assert "retry-after" in reply.headers


async def test_a_plain_answer_that_breaks_is_a_502(rig: Rig) -> None:
    """R05: half a body is never taken for an answer."""

    async def half(call: Call) -> None:
        await call.head(200, "application/json", length=1000)
        await call.send(b'{"id"')
        call.close()

    await rig.start(half)
    rig.configure(max_retries=0)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")


async def test_a_long_plain_answer_that_breaks_is_cut(rig: Rig) -> None:
    """R05: what was passed on already cannot be taken back, so the connection is cut."""

    async def half(call: Call) -> None:
        await call.head(200, "application/json", length=2_000_000)
        await call.send(b"x" * 1_000_000)
        await call.pause(0.1)
        call.reset()

    await rig.start(half)
    reply = await rig.ask(chat())
    assert reply.status == 200
    assert reply.is_cut
    assert rig.records[0].status == 502


async def test_a_long_plain_answer_arrives_whole_with_its_usage(rig: Rig) -> None:
    """Embeddings may be megabytes: passed on as they come."""
    answer = {
        "data": [{"embedding": [0.5] * 200_000}],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }

    async def script(call: Call) -> None:
        await call.answer(200, answer)

    await rig.start(script)
    reply = await rig.ask({"model": "m", "input": "x"}, path="/v1/embeddings")
    assert reply.json() == answer
    assert (rig.records[0].prompt_tokens, rig.records[0].estimated) == (9, False)


async def test_garbage_from_an_engine_is_a_502(rig: Rig) -> None:
    """An engine that does not speak HTTP has failed."""

    async def garbage(call: Call) -> None:
        await call.send(b"hello there\r\n\r\n")

    await rig.start(garbage)
    rig.configure(max_retries=0)
    reply = await rig.ask(chat())
    assert reply.error["code"] == "engine_failed"


async def test_an_answer_that_ends_with_its_connection_is_whole(rig: Rig) -> None:
    """HTTP/1.0 style: neither length nor chunks."""

    async def old(call: Call) -> None:
        body = json.dumps(completion()).encode()
        await call.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
        call.close()

    await rig.start(old)
    reply = await rig.ask(chat())
    assert reply.json() == completion()


async def test_an_informational_answer_is_skipped(rig: Rig) -> None:
    """A 103 before the answer is not the answer."""

    async def hints(call: Call) -> None:
        await call.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await obliging()(call)

    await rig.start(hints)
    assert (await rig.ask(chat())).json()["usage"]["prompt_tokens"] == 11
