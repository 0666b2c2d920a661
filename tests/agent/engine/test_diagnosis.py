"""Each trouble of an engine has its own name, and one that is over is over within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import replace

import pytest

from routing_agent.core.replica_report import report_of
from routing_agent.engine import probe
from routing_agent.engine.probe import Prober
from routing_agent.engine.scrape import Scraper
from routing_agent.http_client import HttpClient
from routing_agent.wire import PoolSettings
from tests.agent.engine.pages import Pages, models, vllm_metrics
from tests.agent.engine.test_probe import watched
from tests.agent.waiting import until

QUICK = PoolSettings(
    probe_interval_s=0.05, probe_timeout_s=5.0, scrape_interval_s=0.05, ttft_limit_s=0.2
)
PAUSED = '{"is_paused": true}'
LLAMA_LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


@pytest.fixture
async def engine():
    engine = await Pages(
        {
            "/health": (200, ""),
            "/version": (200, '{"version": "0.32.0"}'),
            "/v1/models": (200, models("m")),
            "/v1/completions": (200, "{}"),
            "/metrics": (200, vllm_metrics()),
        }
    ).start()
    yield engine
    await engine.stop()


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()


def seen(engine, client, **options):
    """A replica with its prober and scraper."""
    replica, prober, fleet = watched(engine, client, **({"settings": QUICK} | options))
    return replica, prober, Scraper(fleet, client, random.Random(1))


@contextlib.asynccontextmanager
async def watching(prober: Prober, scraper: Scraper):
    """Both at work, as in the agent."""
    tasks = [asyncio.ensure_future(prober.run()), asyncio.ensure_future(scraper.run())]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def said(replica) -> str:
    return report_of(replica, time.monotonic()).health_reason


def is_used(replica) -> bool:
    return replica.exclusion(time.monotonic()) == ""


async def test_a_dead_engine_is_called_dead_and_used_again_when_it_is_back(engine, client):
    replica, prober, scraper = seen(engine, client)
    async with watching(prober, scraper):
        await until(lambda: replica.health == "healthy" and replica.scraped_at)
        await engine.stop()
        await until(lambda: said(replica).startswith("dead: connection refused"))
        assert not is_used(replica)
        engine.pages["/metrics"] = (200, vllm_metrics(started=2000.0))
        await engine.start()
        await until(lambda: is_used(replica))
        await until(lambda: "restarted" in said(replica))


async def test_a_hung_engine_is_called_hung(engine, client):
    replica, prober, _ = seen(engine, client, settings=PoolSettings(probe_timeout_s=0.3))
    await prober.visit(replica)
    engine.hang |= {"/health"}
    for _ in range(3):
        await prober.visit(replica)
    assert said(replica).startswith("hung: no answer")
    engine.hang.clear()
    for _ in range(2):
        await prober.visit(replica)
    assert is_used(replica)


async def test_an_engine_that_computes_nothing_for_our_requests_is_called_hung(engine, client):
    """Its pages are as quick as ever: only its steps tell."""
    replica, prober, scraper = seen(engine, client)
    replica.begin(100, time.monotonic())
    stuck = 'vllm:iteration_tokens_total_count{model_name="m"} 7\n'
    engine.pages["/metrics"] = (200, vllm_metrics(running=3) + stuck)
    async with watching(prober, scraper):
        await until(lambda: said(replica).startswith("hung: 3 requests run in it"))
        assert not is_used(replica)
        assert replica.health == "healthy"
        engine.pages["/metrics"] = (200, vllm_metrics(running=3) + stuck.replace(" 7", " 8"))
        await until(lambda: is_used(replica))
    replica.release(100)


async def test_an_engine_that_was_idle_is_not_doubted_for_that_time(engine, client):
    """It did no step for an hour because nobody asked; its first prefill may take a while."""
    replica, _, scraper = seen(engine, client)
    still = 'vllm:iteration_tokens_total_count{model_name="m"} 7\n'
    engine.pages["/metrics"] = (200, vllm_metrics(running=0) + still)
    await scraper.visit(replica)
    since = scraper._previous[replica]
    scraper._previous[replica] = replace(since, stepped_at=since.stepped_at - 3600)
    replica.begin(100, time.monotonic())
    engine.pages["/metrics"] = (200, vllm_metrics(running=1) + still)
    await scraper.visit(replica)
    assert is_used(replica)
    replica.release(100)


async def test_an_engine_that_computes_for_others_only_is_not_doubted(engine, client):
    replica, _, scraper = seen(engine, client, settings=PoolSettings(ttft_limit_s=0.001))
    stuck = 'vllm:iteration_tokens_total_count{model_name="m"} 7\n'
    engine.pages["/metrics"] = (200, vllm_metrics(running=3) + stuck)
    for _ in range(3):
        await scraper.visit(replica)
    assert is_used(replica)


async def test_a_paused_engine_is_called_paused_at_once(engine, client):
    replica, prober, _ = seen(engine, client)
    engine.pages["/is_paused"] = (200, PAUSED)
    engine.pages["/is_sleeping"] = (200, '{"is_sleeping": true}')
    await prober.visit(replica)
    assert said(replica).startswith("paused")
    assert not is_used(replica)
    assert prober.pause_s(replica) <= 1.0
    engine.pages["/is_paused"] = (200, '{"is_paused": false}')
    engine.pages["/is_sleeping"] = (200, '{"is_sleeping": false}')
    await prober.visit(replica)
    assert is_used(replica)


async def test_a_state_page_that_gives_no_answer_changes_nothing(engine, client):
    replica, prober, _ = seen(engine, client, settings=PoolSettings(probe_timeout_s=0.3))
    engine.pages["/is_paused"] = (200, PAUSED)
    await prober.visit(replica)
    engine.hang.add("/is_paused")
    await prober.visit(replica)
    assert said(replica).startswith("paused")


async def test_a_sleeping_engine_is_called_asleep_whatever_else_it_says(engine, client):
    replica, prober, scraper = seen(engine, client)
    engine.pages["/is_paused"] = (200, PAUSED)
    asleep = 'vllm:engine_sleep_state{sleep_state="awake"} 0\n'
    engine.pages["/metrics"] = (200, vllm_metrics() + asleep)
    await scraper.visit(replica)
    await prober.visit(replica)
    assert said(replica).startswith("asleep")
    assert "asleep" in replica.exclusion(0.0)
    engine.pages["/is_paused"] = (200, '{"is_paused": false}')
    engine.pages["/metrics"] = (200, vllm_metrics())
    await scraper.visit(replica)
    await prober.visit(replica)
    assert is_used(replica)


async def test_a_page_outside_development_mode_is_asked_for_once(engine, client):
    replica, prober, _ = seen(engine, client)
    for _ in range(4):
        await prober.visit(replica)
    # Once more after the facts were learned, which is when a new process is first looked at.
    assert engine.calls["/is_paused"] <= 2


async def test_a_draining_engine_must_prove_that_it_takes_requests_again(engine, client):
    """vLLM after SIGTERM: its health page stays good, a request is what tells."""
    replica, prober, _ = seen(engine, client)
    await prober.visit(replica)
    replica.note_doubt("answers", "draining: it takes no new requests (cannot schedule)")
    engine.pages["/v1/completions"] = (500, "")
    await prober.visit(replica)
    assert replica.exclusion(0.0).startswith("draining")
    assert said(replica).startswith("draining")
    engine.pages["/v1/completions"] = (200, "{}")
    await prober.visit(replica)
    assert is_used(replica)


async def test_a_loading_engine_is_called_loading(engine, client):
    engine.pages["/health"] = (503, LLAMA_LOADING)
    replica, prober, _ = seen(engine, client, kind="llamacpp")
    for _ in range(3):
        await prober.visit(replica)
    assert said(replica).startswith("loading")
    assert "Loading model" in said(replica)


async def test_an_overloaded_engine_is_used_and_called_overloaded(engine, client):
    engine.pages["/metrics"] = (200, vllm_metrics(running=4, waiting=9))
    replica, prober, scraper = seen(engine, client)
    await scraper.visit(replica)
    await prober.visit(replica)
    assert said(replica) == "overloaded: 4 requests run in it and 9 wait"
    assert is_used(replica)


async def test_a_busy_engine_whose_health_page_is_late_is_called_busy(engine, client):
    replica, prober, _ = seen(engine, client, settings=PoolSettings(probe_timeout_s=0.05))
    await prober.visit(replica)
    engine.hang.add("/health")
    for _ in range(4):
        replica.last_token_at = time.monotonic()
        await prober.visit(replica)
    assert said(replica).startswith("busy: it generates")
    assert is_used(replica)


async def test_sglang_is_asked_whether_it_is_ready_not_to_generate(engine, client):
    engine.pages |= {"/ready": (200, ""), "/v1/models": (200, models("m", owned_by="sglang"))}
    engine.hang.add("/health")
    replica, prober, _ = seen(engine, client, kind="sglang")
    await prober.visit(replica)
    assert (replica.health, engine.calls["/health"]) == ("healthy", 0)
    engine.pages["/ready"] = (503, "")
    await prober.visit(replica)  # its "no" is an answer, not a missed probe
    assert said(replica).startswith("paused or draining")
    assert not is_used(replica)
    engine.pages["/ready"] = (200, "")
    await prober.visit(replica)
    assert is_used(replica)


async def test_an_older_sglang_without_that_page_is_asked_for_its_health(engine, client):
    replica, prober, _ = seen(engine, client, kind="sglang")
    for _ in range(3):
        await prober.visit(replica)
    assert replica.health == "healthy"
    assert engine.calls["/ready"] == 1


async def test_a_server_that_cannot_list_its_models_is_asked_for_its_health(engine, client):
    """`transformers serve` answers 500 there and serves."""
    engine.pages["/v1/models"] = (500, "Internal Server Error")
    replica, prober, _ = seen(engine, client, kind="openai")
    await prober.visit(replica)
    assert replica.health == "healthy"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
async def test_an_engine_with_another_model_gets_no_request(engine, client, kind):
    """SGLang and llama.cpp would answer any name with what they have."""
    engine.pages |= {"/v1/models": (200, models("other")), "/ready": (200, "")}
    replica, prober, _ = seen(engine, client, kind=kind)
    await prober.visit(replica)
    assert replica.exclusion(0.0).startswith("another model: it serves 'other', not 'm'")
    engine.pages["/v1/models"] = (200, models("m"))
    await prober.visit(replica)
    assert is_used(replica)


async def test_an_alias_is_the_model(engine, client):
    engine.pages["/v1/models"] = (200, models("path/to.gguf", aliases=["m"]))
    replica, prober, _ = seen(engine, client, kind="llamacpp")
    await prober.visit(replica)
    assert is_used(replica)


async def test_a_served_model_of_another_name_is_right_if_the_table_says_so(engine, client):
    engine.pages["/v1/models"] = (200, models("other"))
    replica, prober, _ = seen(engine, client, served_model="other")
    await prober.visit(replica)
    assert is_used(replica)


async def test_an_engine_that_does_not_take_our_key_says_so(engine, client):
    """llama.cpp: health is open, all else wants the key, its metrics too."""
    refusal = '{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
    engine.pages |= {"/v1/models": (401, refusal), "/metrics": (401, refusal)}
    replica, prober, scraper = seen(engine, client, kind="llamacpp")
    await prober.visit(replica)
    await scraper.visit(replica)
    assert replica.exclusion(0.0).startswith("misconfigured: it does not take this agent's key")
    assert "does not take this agent's key" in replica.scrape_error


async def test_a_llama_cpp_without_metrics_says_what_is_missing(engine, client):
    del engine.pages["/metrics"]
    replica, _, scraper = seen(engine, client, kind="llamacpp")
    await scraper.visit(replica)
    assert "started without its metrics" in replica.scrape_error


async def test_a_restarted_engine_is_forgiven_what_its_last_process_did(engine, client):
    """The breaker's pause was for the old process; the new one gets a trial at once."""
    replica, _, scraper = seen(engine, client, settings=PoolSettings(breaker_open_s=3600))
    await scraper.visit(replica)
    for _ in range(5):
        replica.note_failure(time.monotonic(), trial=False, may_open=True)
    assert not is_used(replica)
    engine.pages["/metrics"] = (200, vllm_metrics(started=2000.0))
    await scraper.visit(replica)
    assert replica.breaker.state == "half_open"
    assert is_used(replica)
    assert replica.ramp_from is not None


async def test_an_engine_that_answers_its_probes_again_gets_a_trial_at_once(engine, client):
    settings = PoolSettings(breaker_open_s=3600, probe_failures=1)
    replica, prober, _ = seen(engine, client, settings=settings)
    for _ in range(5):
        replica.note_failure(time.monotonic(), trial=False, may_open=True)
    engine.pages["/health"] = (500, "")
    await prober.visit(replica)
    engine.pages["/health"] = (200, "")
    for _ in range(2):
        await prober.visit(replica)
    assert replica.breaker.state == "half_open"


async def test_counters_that_vanish_are_a_restart_too(engine, client):
    """SGLang shows a counter only after its first event, and no start time."""
    counted = 'sglang:num_running_reqs 0\nsglang:generation_tokens_total{x="1"} 9\n'
    engine.pages["/metrics"] = (200, counted)
    replica, _, scraper = seen(engine, client, kind="sglang")
    await scraper.visit(replica)
    assert replica.restarted_at is None
    engine.pages["/metrics"] = (200, "sglang:num_running_reqs 0\n")
    await scraper.visit(replica)
    assert replica.restarted_at is not None


async def test_an_engine_that_was_not_up_yet_has_not_restarted(engine, client):
    replica, prober, scraper = seen(engine, client)
    await engine.stop()
    await prober.visit(replica)
    await scraper.visit(replica)
    await engine.start()
    for _ in range(3):
        await prober.visit(replica)
        await scraper.visit(replica)
    assert replica.restarted_at is None


async def test_facts_reach_the_report(engine, client):
    engine.pages["/props"] = (
        200,
        '{"total_slots": 2, "default_generation_settings": {"n_ctx": 2048}, "build_info": "b1"}',
    )
    replica, prober, _ = seen(engine, client, kind="llamacpp")
    await prober.visit(replica)
    report = report_of(replica, 0.0)
    assert (report.kv_capacity_tokens, report.engine_version) == (4096, "b1")
    assert report.engine_max_running == 2


async def test_triton_tells_its_batch_size_in_its_metrics(engine, client):
    line = 'nv_trt_llm_request_metrics{request_type="max"} 64\n'
    engine.pages["/metrics"] = (200, line)
    replica, _, scraper = seen(engine, client, kind="triton")
    await scraper.visit(replica)
    assert report_of(replica, 0.0).engine_max_running == 64


async def test_facts_are_asked_once_in_a_process_life(engine, client):
    replica, prober, _ = seen(engine, client)
    for _ in range(4):
        await prober.visit(replica)
    assert engine.calls["/version"] == 1
    replica.note_restart(time.monotonic())
    await prober.visit(replica)
    assert engine.calls["/version"] == 2


async def test_a_page_that_is_no_http_is_broken_not_hung(client):
    async def garbage(_reader, writer):
        writer.write(b"hello\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    replica, prober, _ = seen(Pages(port=port), client)
    for _ in range(3):
        await prober.visit(replica)
    assert said(replica).startswith("broken")
    server.close()


async def test_an_engine_that_keeps_refusing_the_proof_stays_out(engine, client, monkeypatch):
    monkeypatch.setattr(probe, "PROOF_LIMIT_S", 0.1)
    replica, prober, _ = seen(engine, client)
    await prober.visit(replica)
    replica.note_doubt("answers", "draining")
    engine.hang.add("/v1/completions")
    await prober.visit(replica)
    assert engine.calls["/v1/completions"]
    assert replica.exclusion(0.0) == "draining"
