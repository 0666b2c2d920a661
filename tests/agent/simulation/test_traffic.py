"""Sample clients: what they send, that they spread out, and that nothing stops them."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from routing_agent.simulation import clients, traffic
from routing_agent.simulation.clients import KeyFile, TenantKey
from routing_agent.simulation.one_request import Target, Unanswered, post
from tests.agent.simulation.conftest import StartEngine
from tests.agent.waiting import until

KEYS = KeyFile([TenantKey("acme", "key-a"), TenantKey("globex", "key-g")], "m", "e")
DONE = (
    b'data: {"choices":[{"delta":{"content":"fi"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"ne"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


class Stub:
    """A server that keeps what it was asked and answers what it is told to."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes]) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.open = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.asked.append((headers | {"path": head[0].split()[1]}, body))
            answer = self._answer(body)
            if answer:
                writer.write(answer)
            else:
                await reader.read()  # never answers
        finally:
            self.open -= 1
            writer.close()


def fine(body: dict[str, Any]) -> bytes:
    if not body.get("stream"):
        text = b'{"choices":[{"message":{"content":"fine"}}]}'
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(DONE), DONE)


@asynccontextmanager
async def stub(
    answer: Callable[[dict[str, Any]], bytes] = fine,
) -> AsyncIterator[tuple[Stub, Target]]:
    server_side = Stub(answer)
    server = await asyncio.start_server(server_side.serve, "127.0.0.1", 0)
    async with server:
        yield server_side, Target("127.0.0.1", server.sockets[0].getsockname()[1])


def options(**changes: Any) -> argparse.Namespace:
    settings: dict[str, Any] = {
        "rate": 100.0, "seed": 7, "max_in_flight": 64, "report_every": 60.0,
        "think_factor": 0.001, "alive_file": None, "key_file": Path("unused"),
        "model": "", "embedding_model": "", "wait_for": [],
    }  # fmt: skip
    return argparse.Namespace(**(settings | changes))


@asynccontextmanager
async def sending(
    *targets: Target, keys: KeyFile = KEYS, agents: Sequence[Target] = (), **changes: Any
) -> AsyncIterator[traffic.Traffic]:
    source = traffic.Traffic(options(**changes), list(targets), keys, agents)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_all_kinds_arrive_for_all_tenants_at_all_targets_with_sessions_and_keys() -> None:
    async with (
        stub() as (one, target_one),
        stub() as (two, target_two),
        sending(target_one, target_two) as source,
    ):
        await until(lambda: len(one.asked) > 60 and len(two.asked) > 60)
        await until(lambda: len(source.kinds) == 4)
    asked = one.asked + two.asked
    assert {h["authorization"] for h, _ in asked} == {"Bearer key-a", "Bearer key-g"}
    assert {body["model"] for _, body in asked} == {"m", "e"}
    assert {h["path"] for h, _ in asked} == {"/v1/chat/completions", "/v1/embeddings"}
    assert all(h["x-session-id"] for h, _ in asked)


async def test_nothing_is_sent_before_the_models_asked_for_have_a_replica() -> None:
    looks: list[bytes] = []
    states = [b'{"ready": false, "reason": "no routing table yet"}', b"<html>",
              b'{"ready": true, "models_without_replica": ["m"]}']  # fmt: skip

    async def readiness(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        looks.append(await reader.readuntil(b"\r\n\r\n"))
        assert not server.asked
        state = states.pop(0) if states else b'{"ready": true, "models_without_replica": ["x"]}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(state), state))
        writer.close()

    admin = await asyncio.start_server(readiness, "127.0.0.1", 0)
    agent = Target("127.0.0.1", admin.sockets[0].getsockname()[1])
    async with admin, stub() as (server, target), sending(target, agents=[agent]):
        await until(lambda: len(server.asked) > 3)
    assert len(looks) == 4
    assert looks[0].startswith(b"GET /readyz ")


async def test_a_chat_goes_on_with_the_answers_it_got() -> None:
    async with stub() as (server, target), sending(target):
        await until(lambda: any(len(body.get("messages", ())) > 3 for _, body in server.asked))
    _, body = next(item for item in server.asked if len(item[1].get("messages", ())) > 3)
    assert [m["role"] for m in body["messages"][:4]] == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"] == "fine"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}", "401"),
        (b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}", "429"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\ndata: ", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", "broken"),
        (b"nonsense\r\n\r\n", "broken"),
    ],
)
async def test_it_keeps_going_and_counts_whatever_comes_back(answer: bytes, outcome: str) -> None:
    async with stub(lambda body: answer) as (_, target), sending(target) as source:
        await until(lambda: source.outcomes[outcome] > 20)


async def test_an_error_event_before_done_is_no_success() -> None:
    events = b'data: {"error": {"message": "EngineCore"}}\n\ndata: [DONE]\n\n'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(events), events)
    chats_only = KeyFile(KEYS.tenants, "m")
    async with (
        stub(lambda body: answer) as (_, target),
        sending(target, keys=chats_only) as source,
    ):
        await until(lambda: source.outcomes["broken"] > 5)
    assert source.outcomes["200"] == 0


async def test_with_one_target_away_requests_go_to_the_other_and_with_all_away_it_waits() -> None:
    async with stub() as (_, gone):
        pass
    async with stub() as (server, target), sending(gone, target) as source:
        await until(lambda: len(server.asked) > 20)
        await until(lambda: source.outcomes["went_elsewhere"] > 5)
        assert source.outcomes["away"] == 0
    async with sending(gone) as source:
        await until(lambda: source.outcomes["away"] > 20)


async def test_no_more_requests_are_open_than_allowed() -> None:
    async with (
        stub(lambda body: b"") as (server, target),
        sending(target, max_in_flight=5) as source,
    ):
        await until(lambda: source.outcomes["not_sent"] > 20)
        assert server.open <= 5


async def test_a_server_that_never_answers_is_given_up() -> None:
    async with stub(lambda body: b"") as (_, target):
        with pytest.raises(Unanswered, match="timeout"):
            await post(target, "/v1/chat/completions", {}, b"{}", 0.05)


async def test_traffic_and_simulated_engine_understand_each_other(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(speed=200.0)
    target = Target("127.0.0.1", engine.server.port)
    async with sending(target) as source:
        await until(lambda: source.outcomes["200"] > 30)
    assert source.outcomes["broken"] == 0
    assert engine.server.engine.scheduler.counters.prefix_cache_hits > 0


def test_shares_of_requests_are_as_stated() -> None:
    dice = random.Random(1)
    drawn = [clients.draw(dice, KEYS.tenants, embeddings=True) for _ in range(6000)]
    requests: Counter[str] = Counter()
    for conversation in drawn:
        requests[conversation.kind] += conversation.turns
    for kind, share in clients.MIX.items():
        assert requests[kind] / requests.total() == pytest.approx(share, abs=0.04)


def test_the_rate_varies_gently_around_its_mean() -> None:
    factors = [traffic.rhythm(t) for t in range(0, 58_200, 7)]
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.01)
    assert 0.45 < min(factors) < max(factors) < 1.55


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "is not a key file"),
        ('{"tenants": [], "chat_model": "m"}', "names no tenant"),
        ('{"tenants": [{"name": "a", "key": "k"}]}', "no chat model"),
    ],
)
def test_a_wrong_key_file_is_explained(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        traffic.read_keys(options(key_file=path))


async def test_the_program_reports_each_interval_without_keys_and_ends_on_sigterm(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"tenants": [{"name": "a", "key": "secret"}], "chat_model": "m"}))
    async with stub() as (_, target):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "routing_agent", "sample-traffic", "--targets", str(target),
            "--key-file", str(path), "--rate", "50", "--report-every", "0.5",
            "--alive-file", str(tmp_path / "alive"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert (tmp_path / "alive").exists()
    assert "sample_traffic" in line
    assert "200" in line
    assert "secret" not in line
