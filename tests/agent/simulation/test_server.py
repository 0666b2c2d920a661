"""The simulated engine as clients and scrapers see it, on real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import openai
import pytest

from tests.agent.simulation.conftest import RunningEngine, StartEngine, events, post, said
from tests.agent.waiting import until


async def test_a_stream_has_vllms_events_and_ends_with_usage_and_done(
    engine: RunningEngine,
) -> None:
    answer = await engine.chat(
        stream=True, max_tokens=5, ignore_eos=True, stream_options={"include_usage": True}
    )
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("data: [DONE]\n\n")
    first, *tokens, last, usage = events(answer.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 4
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 5


async def test_a_stream_without_usage_has_none(engine: RunningEngine) -> None:
    answer = await engine.chat(stream=True, max_tokens=5)
    assert "usage" not in answer.text


async def test_continuous_usage_comes_with_every_event(engine: RunningEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await engine.chat(stream=True, max_tokens=3, ignore_eos=True, stream_options=options)
    assert [e["usage"]["completion_tokens"] for e in events(answer.text)] == [1, 1, 2, 3, 3]


async def test_the_same_prompt_gets_the_same_words_streamed_or_not(engine: RunningEngine) -> None:
    whole = (await engine.chat("tell me")).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    assert whole["message"]["content"].endswith(".")
    assert said((await engine.chat("tell me", stream=True)).text) == whole["message"]["content"]
    other = (await engine.chat("tell me more")).json()["choices"][0]
    assert other["message"]["content"] != whole["message"]["content"]


async def test_the_client_our_users_use_can_talk_to_it(engine: RunningEngine) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{engine.server.port}/v1", api_key="none"
    ) as client:
        chat = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=8
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens <= 8
        assert [model.id async for model in client.models.list()] == ["m"]


async def test_a_completion_streams_text(engine: RunningEngine) -> None:
    body = {"model": "m", "prompt": "hello", "max_tokens": 4, "stream": True, "ignore_eos": True}
    answer = await engine.client.post("/v1/completions", json=body)
    texts = [e["choices"][0]["text"] for e in events(answer.text)]
    assert len(texts) == 4
    assert events(answer.text)[0]["object"] == "text_completion"


async def test_a_stop_string_ends_the_answer_before_it_and_is_named(engine: RunningEngine) -> None:
    full = (await engine.chat()).json()["choices"][0]["message"]["content"]
    stop = full.split()[3]
    choice = (await engine.chat(stop=[stop, "never said"])).json()["choices"][0]
    assert choice["message"]["content"] == full[: full.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_a_classification_gets_a_label(engine: RunningEngine) -> None:
    answer = await engine.chat("good or bad?", max_tokens=3)
    assert len(answer.json()["choices"][0]["message"]["content"].split()) == 1


async def test_a_repeated_prompt_reports_cached_tokens_but_not_across_salts(
    engine: RunningEngine,
) -> None:
    text = "the same long prompt " * 50
    cached = []
    for salt in (None, None, "other"):
        usage = (await engine.chat(text, max_tokens=2, cache_salt=salt)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] == 272  # 276 tokens of prompt: 17 blocks of 16


async def test_the_next_turn_of_a_chat_finds_the_turn_before_in_the_cache(
    engine: RunningEngine,
) -> None:
    turns = [{"role": "user", "content": "question " * 100}]
    first = (await engine.chat(messages=turns)).json()
    turns += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    second = (await engine.chat(messages=turns)).json()["usage"]
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached > first["usage"]["prompt_tokens"]


@pytest.mark.parametrize("dimensions", [None, 64])
async def test_embeddings_are_unit_vectors_that_depend_on_the_text_alone(
    start_engine: StartEngine, dimensions: int | None
) -> None:
    engine = await start_engine(embedding=True)
    body = {"model": "m", "input": ["one", "two", "one"], "dimensions": dimensions}
    answer = (await engine.client.post("/v1/embeddings", json=body)).json()
    one, two, again = (item["embedding"] for item in answer["data"])
    assert one == again != two
    assert len(one) == dimensions or 384
    assert sum(x * x for x in one) == pytest.approx(1.0, abs=1e-3)
    assert answer["usage"]["prompt_tokens"] == 3


async def test_embeddings_come_as_base64_where_asked(start_engine: StartEngine) -> None:
    engine = await start_engine(embedding=True)
    body = {"model": "m", "input": "one", "encoding_format": "base64", "dimensions": 4}
    data = (await engine.client.post("/v1/embeddings", json=body)).json()["data"][0]["embedding"]
    assert len(struct.unpack("<4f", base64.b64decode(data))) == 4


async def test_a_chat_model_has_no_embeddings_and_the_reverse(
    engine: RunningEngine, start_engine: StartEngine
) -> None:
    assert (await engine.client.post("/v1/embeddings", json={"input": "x"})).status_code == 404
    other = await start_engine(embedding=True)
    assert (await other.chat()).status_code == 404


async def test_tokenize_counts_as_usage_does(engine: RunningEngine) -> None:
    messages = [{"role": "user", "content": "hello"}]
    tokens = await engine.client.post("/tokenize", json={"model": "m", "messages": messages})
    usage = (await engine.chat("hello", max_tokens=1)).json()["usage"]
    assert tokens.json()["count"] == len(tokens.json()["tokens"]) == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("change", "status", "kind", "param"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model"),
        ({"messages": []}, 400, "BadRequestError", None),
        ({"messages": None}, 400, "Bad Request", "body.messages"),
        ({"max_tokens": "x"}, 400, "Bad Request", "body.max_tokens"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 10**6}, 400, "BadRequestError", "max_tokens"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"n": 0}, 400, "BadRequestError", "n"),
        ({"n": 2, "temperature": 0}, 400, "BadRequestError", None),
        ({"logprobs": True, "top_logprobs": 21}, 400, "BadRequestError", "logprobs"),
        ({"top_logprobs": 2}, 400, "BadRequestError", "top_logprobs"),
        ({"tools": [{"type": "function"}]}, 400, "Bad Request", "body.tools"),
        ({"messages": [{"role": "user", "content": "x" * 140_000}]}, 400, "BadRequestError",
         "input_tokens"),
    ],
)  # fmt: skip
async def test_wrong_requests_are_refused_in_vllms_shape(
    engine: RunningEngine, change: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    for stream in (False, True):
        answer = await engine.chat(**({"stream": stream} | change))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, status)
        assert (error["type"], error["param"]) == (kind, param)
        assert error["message"]


async def test_a_missing_field_and_broken_json_are_told_apart(engine: RunningEngine) -> None:
    missing = await engine.client.post("/v1/chat/completions", json={})
    assert missing.json()["error"]["param"] == "body.messages"
    broken = await engine.client.post("/v1/chat/completions", content=b"{bad")
    assert broken.status_code == 400
    assert "JSON" in broken.json()["error"]["message"]


async def test_a_body_that_does_not_call_itself_json_is_refused(engine: RunningEngine) -> None:
    headers = {"content-type": "text/plain"}
    answer = await engine.client.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert "Unsupported Media Type" in answer.json()["error"]["message"]


async def test_unknown_paths_and_methods_are_refused(engine: RunningEngine) -> None:
    assert (await engine.client.get("/nothing")).json() == {"detail": "Not Found"}
    assert (await engine.client.get("/v1/chat/completions")).status_code == 405


async def test_a_key_guards_v1_and_leaves_health_and_metrics_open(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(api_key="right")
    assert (await engine.chat()).json() == {"error": "Unauthorized"}
    wrong = {"authorization": "Bearer wrong"}
    assert (await engine.client.get("/v1/models", headers=wrong)).status_code == 401
    right = {"authorization": "Bearer right"}
    assert (await engine.client.get("/v1/models", headers=right)).status_code == 200
    assert (await engine.client.get("/health")).status_code == 200
    assert (await engine.client.get("/metrics")).status_code == 200


async def test_a_client_that_leaves_frees_its_place_at_once_running_or_queued(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(max_running_sequences=1)
    _, running = await engine.open_stream()
    _, queued = await engine.open_stream()
    scheduler = engine.server.engine.scheduler
    await until(lambda: (scheduler.running, scheduler.waiting) == (1, 1))
    assert await engine.metric("num_requests_waiting") == 1
    queued.close()
    await until(lambda: (scheduler.running, scheduler.waiting) == (1, 0))
    running.close()
    await until(lambda: (scheduler.running, scheduler.pool.used) == (0, 0))
    assert engine.server.engine.jobs == 0


async def test_the_head_of_a_queued_stream_comes_at_once_its_tokens_later(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(max_running_sequences=1)
    _, first = await engine.open_stream()
    reader, _second = await engine.open_stream(max_tokens=1)  # returns once the head is there
    assert engine.server.engine.scheduler.waiting == 1
    first.close()
    assert b"[DONE]" in await reader.readuntil(b"[DONE]")


async def test_requests_on_one_connection_are_answered_in_order(engine: RunningEngine) -> None:
    reader, writer = await engine.connect()
    bodies = [
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": n, "ignore_eos": True}
        for n in (9, 2)
    ]
    writer.write(b"".join(post("/v1/chat/completions", body) for body in bodies))
    for tokens in (9, 2):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        assert answer["usage"]["completion_tokens"] == tokens
    writer.close()


async def test_thousands_of_pipelined_requests_are_answered(engine: RunningEngine) -> None:
    reader, writer = await engine.connect()
    writer.write(b"GET /health HTTP/1.1\r\nhost: e\r\n\r\n" * 3000)
    writer.write(b"GET /health HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n")
    assert (await reader.read(-1)).count(b"200 OK") == 3001


async def test_what_is_not_http_is_refused_and_closed(engine: RunningEngine) -> None:
    reader, writer = await engine.connect()
    writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 400")


async def test_metrics_count_what_was_served(engine: RunningEngine) -> None:
    await engine.chat(max_tokens=5, ignore_eos=True)
    await engine.chat(max_tokens=7, ignore_eos=True, stream=True)
    samples = await engine.metrics()
    labels = 'engine="0",model_name="m"'
    assert samples[f"vllm:generation_tokens_total{{{labels}}}"] == 12
    assert samples[f'vllm:request_success_total{{{labels},finished_reason="length"}}'] == 2
    assert samples[f"vllm:time_to_first_token_seconds_count{{{labels}}}"] == 2
    assert samples[f"vllm:inter_token_latency_seconds_count{{{labels}}}"] == 10
    assert samples[f"vllm:num_requests_running{{{labels}}}"] == 0
    assert samples[f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}}'] == 2
    assert samples["process_start_time_seconds"] > 1.6e9
    assert any(name.startswith("vllm:cache_config_info{") for name in samples)


async def test_every_metric_has_help_type_and_counters_a_created_series(
    engine: RunningEngine,
) -> None:
    page = (await engine.client.get("/metrics")).text.splitlines()
    kinds = dict(line.split(" ")[2:4] for line in page if line.startswith("# TYPE"))
    helped = {line.split(" ")[2] for line in page if line.startswith("# HELP")}
    assert helped == set(kinds)
    for name, kind in kinds.items():
        if kind != "gauge" and name.startswith("vllm:"):
            base = name if kind == "histogram" else name.removesuffix("_total")
            assert kinds[f"{base}_created"] == "gauge"


async def test_an_idle_connection_is_closed_by_the_engine(engine: RunningEngine) -> None:
    engine.server.idle_s = 0.05
    reader, writer = await engine.connect()
    assert await reader.read() == b""
    writer.close()


async def test_a_stopping_engine_ends_what_runs_and_refuses_what_is_new(
    engine: RunningEngine,
) -> None:
    reader, _ = await engine.open_stream(max_tokens=60)
    await until(lambda: engine.server.engine.scheduler.running == 1)
    stopping = asyncio.create_task(engine.server.stop(10.0))
    await until(lambda: engine.server.is_draining)
    late = await engine.chat()
    assert late.status_code == 500
    assert "after shutdown" in late.json()["error"]["message"]
    assert b"[DONE]" in await reader.read()
    await stopping
