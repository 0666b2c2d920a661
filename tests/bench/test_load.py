"""bin/bench load: a trace sent live, judged over real sockets with simulated engines."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as bench
from bench.live import client, command, table
from bench.live.client import Clients
from bench.live.prompts import PromptWriter, TextSize, words
from bench.live.records import read_records
from bench.live.schedule import Selection, schedule
from bench.live.sending import chat_body
from bench.live.summary import Summary
from bench.machine import BenchError
from routing_agent.simulation.faults import Faults
from routing_agent.simulation.one_request import Target
from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer
from routing_agent.simulation.tokens import token_count
from routing_agent.simulation.traces.model import Trace, TraceRequest
from tests.agent.waiting import until

PROFILE = dataclasses.replace(A100_QWEN_7B.faster(50))
LIMITS = Limits(model="m", longest_request_tokens=PROFILE.longest_request_tokens, answer_tokens=40)
StartEngine = Callable[..., Awaitable[EngineServer]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    running: list[EngineServer] = []

    async def start(**options: Any) -> EngineServer:
        server = EngineServer(PROFILE, LIMITS, **options)
        await server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        await server.stop(0.01)


def url(engine: EngineServer) -> str:
    return f"http://127.0.0.1:{engine.port}"


def options(trace: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([str(trace), *more])


def mooncake(folder: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    file = folder / "conversation.jsonl"
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return file


def azure(folder: Path, *rows: str) -> Path:
    file = folder / "azure.csv"
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return file


def quick_azure(folder: Path, count: int) -> Path:
    return azure(folder, *(f"2023-11-16 18:15:46.{n:03d}0000,100,3" for n in range(count)))


async def load(trace: Path, *more: str) -> Summary:
    return await command.load(options(trace, *more))


async def test_lengths_and_shared_prefixes_are_those_of_the_trace(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    trace = mooncake(
        tmp_path,
        (0, 1100, 5, [0, 1, 2]),
        (300, 1024, 7, [0, 1]),
        (600, 700, 4, [0, 3]),
    )
    kept = tmp_path / "records.jsonl"
    told = await load(trace, "--url", url(engine), "--records", str(kept))
    records = sorted(read_records(kept), key=lambda record: record.number)
    assert [r.prompt_tokens for r in records] == [1100, 1024, 700]
    assert [r.output_tokens for r in records] == [5, 7, 4]
    # All but the block in which the prompts part: an engine's blocks have 16 tokens, and a whole
    # prompt that is cached leaves its last block to compute.
    assert [r.cached_tokens for r in records] == [0, 1008, 512]
    assert told.hit_rate == pytest.approx(1520 / 2824)
    assert (told.answered_well, told.errors) == (3, {})


async def test_prompts_of_one_run_are_not_in_the_cache_of_the_next_unless_asked_for(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    trace = mooncake(tmp_path, (0, 512, 2, [0]))
    seeded = ("--url", url(engine), "--text-seed", "same")
    assert (await load(trace, "--url", url(engine))).cached_tokens == 0
    assert (await load(trace, "--url", url(engine))).cached_tokens == 0
    assert (await load(trace, *seeded)).cached_tokens == 0
    assert (await load(trace, *seeded)).cached_tokens > 400


async def test_arrivals_wait_for_no_answer(start_engine: StartEngine, tmp_path: Path) -> None:
    engine = await start_engine()
    trace = quick_azure(tmp_path, 20)
    sized = ("--url", url(engine), "--model", "m", "--bytes-per-token", "4")
    engine.engine.switch(Faults(asleep=True))
    told = await load(trace, *sized, "--timeout", "0.5")
    assert (told.sent, told.errors) == (20, {"timeout": 20})


async def test_above_the_limit_of_open_requests_none_is_sent_and_the_outcome_says_so(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    engine.engine.switch(Faults(asleep=True))
    told = await load(
        quick_azure(tmp_path, 10), "--url", url(engine), "--model", "m", "--bytes-per-token", "4",
        "--timeout", "2", "--most-in-flight", "4",
    )  # fmt: skip
    assert (told.sent, told.errors) == (4, {"held back": 6, "timeout": 4})


async def test_urls_are_taken_in_turn_and_a_session_keeps_its_key(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engines = [await start_engine(), await start_engine()]
    rows = [(n, 512, 2, [n % 3]) for n in range(12)]
    kept = tmp_path / "records.jsonl"
    told = await load(
        mooncake(tmp_path, *rows), "--url", *map(url, engines), "--key", "a", "--key", "b",
        "--records", str(kept),
    )  # fmt: skip
    assert told.by_url == {url(engine): 6 for engine in engines}
    tenants = {(r.number % 3, r.tenant) for r in read_records(kept)}
    assert len(tenants) == 3


async def test_a_key_that_is_refused_is_told_before_anything_is_sent(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine(api_key="right")
    with pytest.raises(BenchError, match=r"401.*--key"):
        await load(quick_azure(tmp_path, 1), "--url", url(engine), "--model", "m", "--key", "wrong")
    with pytest.raises(BenchError, match=r"401.*--key"):
        await load(quick_azure(tmp_path, 1), "--url", url(engine))


async def test_errors_are_counted_by_status_and_code(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    trace = azure(tmp_path, "2023-11-16 18:15:46.0,100,3", "2023-11-16 18:15:46.01,100,40000")
    told = await load(trace, "--url", url(engine))
    assert (told.answered_well, told.errors) == (1, {"400": 1})
    left_out = await load(trace, "--url", url(engine), "--context", "32768")
    assert (left_out.errors, left_out.left_out) == ({}, {"longer than 32,768 tokens": 1})


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        ({"fail": {"status": 503}}, "503"),
        ({"hang": {"after_tokens": 2}}, "timeout"),
        ({"crash": {"how": "reset", "after_tokens": 2}}, "connection"),
    ],
)
async def test_what_goes_wrong_is_named(
    start_engine: StartEngine, faults: dict[str, Any], outcome: str
) -> None:
    engine = await start_engine()
    engine.engine.switch(msgspec.convert(faults, Faults))
    clients = Clients(timeout_s=0.5)
    target = Target.parse(url(engine))
    answer = await clients.ask(target, "/v1/chat/completions", {}, chat_body("m", "hello", 8))
    clients.close()
    assert answer.outcome.startswith(outcome)
    assert (answer.first_token_at is not None) == ("after_tokens" in str(faults))


async def test_times_are_ordered_and_tokens_after_the_first_are_averaged(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    clients = Clients(timeout_s=30)
    target = Target.parse(url(engine))
    answer = await clients.ask(target, "/v1/chat/completions", {}, chat_body("m", "hello", 9))
    clients.close()
    assert answer.outcome == "ok"
    assert answer.ttft_s is not None
    assert answer.tpot_s is not None
    assert answer.ttft_s + 8 * answer.tpot_s == pytest.approx(answer.e2e_s)


@pytest.mark.parametrize(("idle_limit_s", "expected"), [(0.0, 3), (60.0, 1)])
async def test_a_connection_that_may_be_closing_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, idle_limit_s: float, expected: int
) -> None:
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    body = chat_body("m", "hi", 2)
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(body))
            writer.write(head % len(event) + event)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setattr(client, "IDLE_LIMIT_S", idle_limit_s)
    clients = Clients(timeout_s=30)
    target = Target.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for _ in range(3):
        answer = await clients.ask(target, "/v1/chat/completions", {}, body)
        assert answer.outcome == "ok"
    clients.close()
    server.close()
    await server.wait_closed()
    await until(lambda: all(writer.is_closing() for writer in connections))
    assert len(connections) == expected


async def test_a_load_that_is_stopped_tells_how_far_it_got(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    trace = azure(tmp_path, "2023-11-16 18:15:46.0,100,3", "2023-11-16 19:15:46.0,100,3")
    kept = tmp_path / "records.jsonl"
    words = ("load", str(trace), "--url", url(engine), "--json", "--records", str(kept))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", *words,
        stdout=asyncio.subprocess.PIPE, cwd=Path(bench.__file__).parent.parent,
    )  # fmt: skip
    await until(lambda: kept.exists() and kept.stat().st_size > 0)
    process.terminate()
    output, _ = await process.communicate()
    told = json.loads(output)
    assert (told["planned"], told["answered_well"], told["errors"]) == (2, 1, {})


def test_without_a_trace_the_command_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["load", str(tmp_path / "no.csv"), "--url", "http://127.0.0.1:9"]
    assert bench.main(words) == 2
    assert "there is no such file" in capsys.readouterr().err


# -- what is sent, and when ------------------------------------------------------------------------


def request(at_s: float = 0.0, tokens: int = 100, **fields: Any) -> TraceRequest:
    return TraceRequest(
        at_s=at_s, prompt_tokens=tokens, output_tokens=10, **{"session": 1} | fields
    )


def trace(*requests: TraceRequest) -> Trace:
    return Trace(name="t", requests=requests)


def test_twice_the_speed_is_half_the_time_and_minutes_are_the_traces_own() -> None:
    recorded = trace(request(10.0), request(40.0), request(69.0), request(71.0))
    plan = schedule(recorded, Selection(speed=2.0, minutes=1.0))
    assert [planned.at_s for planned in plan.requests] == [0.0, 15.0, 29.5]
    assert plan.duration_s == 30.0


@given(st.integers(0, 50), st.floats(0.05, 1.0))
def test_a_session_is_taken_whole_or_not_at_all(seed: int, share: float) -> None:
    recorded = trace(*(request(float(n), session=n % 7) for n in range(40)))
    plan = schedule(recorded, Selection(share=share, seed=seed))
    taken = {planned.request.session for planned in plan.requests}
    assert len(plan.requests) == sum(n % 7 in taken for n in range(40))
    assert len(plan.requests) + plan.left_out["not in the share"] == 40


SIZE = TextSize(4.0, 0)


@given(st.integers(1, 3000), st.lists(st.integers(0, 5), max_size=8))
def test_a_prompt_has_the_tokens_that_the_trace_says(tokens: int, blocks: list[int]) -> None:
    text = PromptWriter(SIZE, 512, "s").text(request(tokens=tokens, blocks=tuple(blocks)), 0)
    assert token_count(text.encode()) == tokens


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 5))
def test_prompts_share_the_text_of_equal_blocks_and_part_with_the_first_unequal_one(
    blocks: list[int], kept: int
) -> None:
    kept = min(kept, len(blocks))
    others = [*blocks[:kept], *(block + 10 for block in blocks[kept:])]
    writer = PromptWriter(SIZE, 32, "s")
    one, other = (
        writer.text(request(tokens=32 * len(ids), blocks=tuple(ids)), 0) for ids in (blocks, others)
    )
    shared = 4 * 32 * kept
    assert one[:shared] == other[:shared]
    assert kept == len(blocks) or one[shared : shared + 12] != other[shared : shared + 12]


def test_what_no_block_covers_belongs_to_one_request_alone() -> None:
    writer = PromptWriter(SIZE, 64, "s")
    one, other = (writer.text(request(tokens=100, blocks=(1,)), number) for number in (1, 2))
    assert one[:256] == other[:256]
    assert one[256:268] != other[256:268]


def test_another_tokenizer_and_a_chat_template_are_allowed_for() -> None:
    assert TextSize(2.5, 20).text_bytes(120) == 250
    assert TextSize(2.5, 20).text_bytes(5) == 1


@given(st.text(min_size=1), st.integers(1, 5000))
def test_words_have_the_length_asked_for(seed: str, length: int) -> None:
    assert len(words(seed, length).encode()) == length


async def test_the_table_names_errors_rates_and_percentiles(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine()
    told = await load(quick_azure(tmp_path, 3), "--url", url(engine), "--share", "1")
    text = table.as_text(told)
    assert "3 requests planned" in text
    assert "no errors" in text
    assert "P99" in text
    assert "client late by" in text
    assert "token hit rate 0.0%" in text
