"""bin/bench model: what it measures, the profile it finds, and what it says of the difference."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as bench
from bench.live.client import Clients
from bench.machine import BenchError
from bench.model import command, scenarios
from bench.model.comparison import HITS, TTFT, WAIT, Row, as_text, rows
from bench.model.facts import EnginePage
from bench.model.fitting import Fit
from bench.model.measuring import LiveEngine
from bench.model.passed import Outcome, Passed, median_of
from bench.model.plan import Plan
from bench.model.simulating import capacity, simulate
from routing_agent.simulation.one_request import Target
from routing_agent.simulation.profiles import A100_QWEN_7B, Profile
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer

# A small engine: prompts come in chunks, and eight sequences run at once.
SMALL = dataclasses.replace(
    A100_QWEN_7B, max_running_sequences=8, kv_blocks=256, context_tokens=2048
)


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    profile = SMALL.faster(50)
    limits = Limits(model="m", longest_request_tokens=2048, answer_tokens=40)
    server = EngineServer(profile, limits)
    await server.start()
    yield server
    await server.stop(0.01)


@pytest.fixture
async def live(engine: EngineServer) -> AsyncIterator[LiveEngine]:
    url = f"http://127.0.0.1:{engine.port}"
    page, clients = EnginePage(url, ""), Clients(60.0)
    yield LiveEngine(target=Target.parse(url), page=page, clients=clients, model="m", key="")
    clients.close()
    await page.close()


# -- the profile -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefill_tokens_per_s": 20_000.0, "decode_step_s": 0.004},
        {"decode_step_per_sequence_s": 0.002, "step_token_budget": 256},
        {"decode_step_per_sequence_s": 0.0},
        {"decode_step_s": 0.001, "step_overhead_s": 0.003, "prefill_tokens_per_s": 20_000.0},
        {"decode_step_s": 0.0, "step_overhead_s": 0.008, "prefill_tokens_per_s": 50_000.0},
    ],
    ids=["small", "quick", "dear-sequences", "flat", "overhead", "nothing-but-overhead"],
)
@pytest.mark.parametrize("outside_s", [0.0, 0.02])
def test_a_profile_is_found_again_from_what_its_engine_would_be_measured_at(
    changes: dict[str, float], outside_s: float
) -> None:
    profile = dataclasses.replace(SMALL, **changes)
    plan = Plan(longest=2046, most=8, requests=20)
    measured = {
        scenario.name: [_later(simulate(profile, scenario), outside_s)]
        for scenario in plan.to_fit("any")
    }
    sizes = dataclasses.replace(
        profile, prefill_tokens_per_s=1.0, decode_step_s=1.0, decode_step_per_sequence_s=1.0
    )
    fit = plan.fitted(sizes, measured)
    assert fit.profile.prefill_tokens_per_s == pytest.approx(profile.prefill_tokens_per_s, rel=0.02)
    assert fit.profile.decode_step_s == pytest.approx(profile.decode_step_s, rel=0.02, abs=1e-5)
    assert fit.profile.step_overhead_s == pytest.approx(profile.step_overhead_s, rel=0.02, abs=1e-5)
    assert fit.profile.decode_step_per_sequence_s == pytest.approx(
        profile.decode_step_per_sequence_s, rel=0.05, abs=0.00001
    )
    assert fit.outside_s == pytest.approx(outside_s, rel=0.1, abs=0.0005)


def _later(passed: Passed, outside_s: float) -> Passed:
    outcomes = (dataclasses.replace(o, ttft_s=o.ttft_s + outside_s) for o in passed.outcomes)
    return Passed(tuple(outcomes), passed.queue_wait_s)


# -- live and simulated are asked the same ---------------------------------------------------------


async def test_a_prefix_that_is_cached_live_is_cached_in_the_model(live: LiveEngine) -> None:
    found = await live.run(scenarios.prefix(1000, "salt"))
    said = simulate(SMALL, scenarios.prefix(1000, "salt"))
    assert [o.cached_tokens for o in found.outcomes] == [992] * 3
    assert found.outcomes[0].tpot_s is not None
    assert said.cached_tokens == found.cached_tokens


async def test_shared_texts_of_a_load_are_cached_live_as_in_the_model(live: LiveEngine) -> None:
    at_leisure = scenarios.load(20.0, 12, 2046, "salt")
    found = await live.run(at_leisure)
    assert found.cached_tokens == simulate(SMALL.faster(50), at_leisure).cached_tokens > 0


async def test_the_places_in_the_batch_are_found_by_a_burst(
    live: LiveEngine, engine: EngineServer
) -> None:
    engine.engine.scheduler.slowdown = 20.0
    assert await live.most_running(scenarios.decode(24, 64, "salt")) == 8
    assert await live.most_running(scenarios.decode(2, 4, "salt")) is None


def test_a_wait_is_seen_in_the_model_where_there_are_more_than_it_runs() -> None:
    few, many = (simulate(SMALL, scenarios.decode(n, 64, "s")).queue_wait_s for n in (8, 16))
    assert few is not None
    assert many is not None
    assert few == 0
    assert many > 30 * SMALL.decode_step_s


@given(st.floats(0.5, 50.0), st.integers(1, 30), st.integers(256, 8000))
def test_every_request_of_a_load_fits_the_context(rate: float, count: int, longest: int) -> None:
    (asks,) = scenarios.load(rate, count, longest, "s").batches
    assert len(asks) == count
    assert all(1 <= ask.prompt_tokens + ask.output_tokens <= longest for ask in asks)
    assert [ask.at_s for ask in asks] == sorted(ask.at_s for ask in asks)
    other = scenarios.load(rate, count, longest, "another salt").batches[0]
    assert [(a.at_s, a.prompt_tokens) for a in asks] == [(a.at_s, a.prompt_tokens) for a in other]
    assert asks[0].token_ids() != other[0].token_ids()


def test_capacity_is_what_an_engine_gets_done_when_it_never_waits() -> None:
    saturated = scenarios.saturation(50, 2046)
    slow, quick = (capacity(SMALL.faster(factor), saturated) for factor in (1, 10))
    assert quick == pytest.approx(10 * slow)


# -- what is said ----------------------------------------------------------------------------------


def passed(*ttfts_s: float, cached: int = 0, wait_s: float | None = None) -> Passed:
    return Passed(tuple(Outcome(ttft_s, None, cached) for ttft_s in ttfts_s), wait_s)


def compared(measured: list[Passed], profile: Profile = SMALL, outside_s: float = 0.0) -> list[Row]:
    scenario = scenarios.prefix(1000, "s")
    figures = ((TTFT, True), (HITS, False), (WAIT, False))
    fit = Fit(profile, outside_s)
    return list(rows(fit, [scenario], lambda _: figures, {scenario.name: measured}))


def test_the_median_pass_counts_and_the_others_say_how_noisy_it_was() -> None:
    ttft, hits, wait = compared([passed(t, t, t, cached=992) for t in (0.3, 0.012, 0.024)])
    assert (ttft.measured, ttft.low, ttft.high) == pytest.approx((24, 12, 300))
    assert ttft.simulated == pytest.approx(12)
    assert ttft.error == pytest.approx(-0.5)
    assert (hits.measured, hits.simulated, hits.error) == (2976, 2976, 0)
    assert (wait.measured, wait.error) == (None, None)


def test_what_a_request_costs_outside_the_engine_is_in_ttft_but_not_in_the_queue() -> None:
    rows_ = compared([passed(0.03, cached=1, wait_s=0.001)], outside_s=0.02)
    assert rows_[0].simulated == pytest.approx(32)
    assert rows_[2].simulated == 0


def test_the_table_tells_fitted_from_predicted_and_what_is_not_known() -> None:
    text = as_text(Fit(SMALL, 0.0), compared([passed(0.024, cached=992)] * 3))
    assert "1 figures fitted to: off by 50% at the median" in text
    assert "1 figures predicted: off by 200%" in text
    assert "queue wait, mean" in text
    assert "- to -" in text


def test_a_median_with_a_pass_missing_is_not_known() -> None:
    assert median_of([1.0, None, 3.0]) is None
    assert median_of([]) is None
    assert median_of([3.0, 1.0, 2.0]) == 2.0


# -- the command -----------------------------------------------------------------------------------


def options(engine: EngineServer, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--engine", f"http://127.0.0.1:{engine.port}", *more])


async def test_a_simulated_engine_is_measured_from_end_to_end(engine: EngineServer) -> None:
    asked = options(engine, "--repeat", "1", "--requests", "10", "--max-seqs", "8")
    fit, compared = await command.compare(asked)
    assert fit.profile.kv_blocks == 256
    assert fit.profile.context_tokens == 2048
    hits = [row for row in compared if row.figure == HITS.name and "again" in row.scenario]
    assert hits
    assert all(row.error == 0 for row in hits)
    told = json.loads(command.as_json(fit, compared))
    assert {"scenario", "measured", "simulated", "error"} <= told["figures"][0].keys()


@pytest.mark.parametrize(
    "body", [b'{"data": [{"id": "m"}]}', b'{"data": []}', b"not JSON"], ids=["sizes", "models", "x"]
)
async def test_an_engine_that_does_not_tell_its_sizes_is_named(body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    page = EnginePage(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
    try:
        with pytest.raises(BenchError, match="does not tell its sizes the way vLLM does"):
            await page.sizes()
    finally:
        await page.close()
        server.close()
        await server.wait_closed()


def test_without_an_engine_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["model", "--engine", "http://127.0.0.1:9"]) == 2
    assert "does not answer" in capsys.readouterr().err
