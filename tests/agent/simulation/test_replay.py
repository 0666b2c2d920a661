"""Replay: the command, what oracle and agents know, and what holds for any trace."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core.choose import POLICIES
from routing_agent.simulation import knowledge
from routing_agent.simulation import replay as command
from routing_agent.simulation.fleet_replay import FleetReplay, ReplayPlan
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.profiles import A100_QWEN_7B, Profile, prefill_only
from routing_agent.simulation.results import hit_rate_over_time, percentile, summarize, work_of
from routing_agent.simulation.traces.model import TraceRequest
from routing_agent.wire import PolicyName, PoolSettings

KEYS = [
    "policy", "hit_rate", "balance", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s",
    "shed",
]  # fmt: skip
TRACES = Path(__file__).parents[4] / "shared" / "traces" / "mooncake"
PLAIN = prefill_only(1000.0, kv_blocks=50, block_tokens=10)


def asked(
    at_s: float, prompt: int = 100, *, output: int = 5, session: int = 0, blocks: Sequence[int] = ()
) -> TraceRequest:
    return TraceRequest(
        at_s=at_s, prompt_tokens=prompt, output_tokens=output, session=session, blocks=tuple(blocks)
    )


def plan(policy: PolicyName = "least_tokens", profile: Profile = PLAIN, **rest: Any) -> ReplayPlan:
    whole = {"replicas": 2, "knowledge": "oracle", "prefill_only": True} | rest
    return ReplayPlan(profile=profile, settings=PoolSettings(policy=policy), **whole)


def fly(requests: Sequence[TraceRequest], **rest: Any) -> list[Flight]:
    return FleetReplay(plan(**rest)).run(requests)


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Chats that grow, of five people, and one long prompt."""
    lines, fresh = [], iter(range(100, 1000))
    histories = {person: [0, next(fresh)] for person in range(5)}
    for turn in range(40):
        history = histories[turn * 3 % 5]
        history += [next(fresh), next(fresh)]
        row = {"input_length": len(history) * 512, "output_length": 30, "hash_ids": history}
        lines.append(json.dumps({"timestamp": turn * 700, **row}))
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(lines))
    return file


def replay(words: Sequence[str]) -> int:
    """Run the command in this process; the command line would also set up this process's log."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(words))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert replay([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_the_results_are_an_array_with_a_row_for_each_policy(trace_file, capsys):
    rows = json.loads(run(capsys, trace_file, "--replicas", 3, "--policy", "all", "--json"))
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(list(row) == KEYS for row in rows)
    assert all(0 < row["hit_rate"] < 1 and row["balance"] >= 1 for row in rows)
    assert all(row["ttft_p50_s"] <= row["ttft_p90_s"] <= row["ttft_p99_s"] for row in rows)


def test_it_is_a_command_of_the_agent(trace_file):
    words = [sys.executable, "-m", "routing_agent", "replay", str(trace_file), "--json"]
    done = subprocess.run(words, capture_output=True, check=True)
    assert len(json.loads(done.stdout)) == len(POLICIES)
    assert done.stderr == b""


def test_the_same_seed_gives_the_same_result(trace_file, capsys):
    words = (trace_file, "--policy", "random", "--agents", 3, "--json")
    results = [run(capsys, *words, "--seed", seed) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]


def test_a_table_names_what_was_replayed(trace_file, capsys):
    shown = run(capsys, trace_file, "--policy", "round_robin,random", "--knowledge", "oracle")
    heading, head, *rows = shown.splitlines()
    assert "40 requests" in heading
    assert "70% uncached" in heading
    assert head.split()[:2] == ["policy", "hits"]
    assert [row.split()[0] for row in rows] == ["round_robin", "random"]


def test_an_engine_profile_also_tells_how_answers_go_on(trace_file, capsys):
    shown = run(capsys, trace_file, "--profile", "a100-80gb-qwen2.5-7b", "--policy", "random")
    assert "TPOT P50 ms" in shown


def test_the_page_has_its_charts_and_needs_no_network(trace_file, tmp_path, capsys):
    page = tmp_path / "page.html"
    run(capsys, trace_file, "--policy", "round_robin,consistent_hash", "--html", page)
    text = page.read_text()
    for title in ("Time to first token", "Prefix hit rate over time", "Work per replica"):
        assert title in text
    assert 'src="http' not in text


def test_a_page_that_cannot_be_written_is_told_after_the_results(trace_file, tmp_path, capsys):
    words = [str(trace_file), "--policy", "random", "--html", str(tmp_path / "no" / "p")]
    assert replay(words) == 1
    captured = capsys.readouterr()
    assert "random" in captured.out
    assert "No such file or directory" in captured.err


def test_without_plotly_no_page_is_promised(trace_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("routing_agent.simulation.replay_page.find_spec", lambda name: None)
    assert replay([str(trace_file), "--html", str(tmp_path / "p.html")]) == 2
    assert "--html needs the package plotly" in capsys.readouterr().err


def test_a_bar_shows_how_far_it_is_where_somebody_looks(trace_file, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert replay([str(trace_file), "--policy", "random"]) == 0
    shown = capsys.readouterr().err
    assert "random           [###############               ] 20 of 40" in shown
    assert shown.endswith(" " * 10 + "\r")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "best"], "there is no policy 'best'; known: all, round_robin"),
        (["--ring-bound", "0.5"], "--ring-bound must be at least 1"),
        (["--block-tokens", "500"], "its blocks have 512 tokens; blocks of 500"),
        (["--format", "azure"], "line 1: the columns must be"),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_runs(trace_file, capsys, words, told):
    assert replay([str(trace_file), *words]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_bad_line_is_told_with_its_number(trace_file, capsys):
    with trace_file.open("a") as file:
        file.write('\n{"timestamp": -1}\n')
    assert replay([str(trace_file)]) == 2
    assert "chats.jsonl line 41: " in capsys.readouterr().err


def test_a_higher_utilisation_makes_requests_wait(trace_file, capsys):
    words = (trace_file, "--policy", "round_robin", "--json", "--utilisation")
    low, high = (json.loads(run(capsys, *words, share))[0] for share in (0.05, 60))
    assert low["ttft_mean_s"] < high["ttft_mean_s"]


# What is known


def test_an_oracle_knows_the_tokens_that_are_left_to_compute():
    """The first goes to one replica, a shorter one to the other; the third where less is left."""
    first, second, third = fly([asked(0.0, 490), asked(0.1, 300), asked(0.35, 100)])
    assert {first.engine, second.engine} == {0, 1}
    assert third.engine == second.engine
    assert third.ttft_s == pytest.approx(0.05 + 0.1)  # 50 tokens of the second were left


def test_an_oracle_takes_no_cached_token_for_work():
    """The repeated prompt is cached where it ran: only its last block is work to be done."""
    blocks = tuple(range(40))
    requests = [
        asked(0.0, 400, blocks=blocks),
        asked(1.0, 400, blocks=blocks),
        asked(1.0, 300),
        asked(1.0, 100),
    ]
    flights = fly(requests, replicas=1)
    assert [f.cached_tokens for f in flights] == [0, 390, 0, 0]
    assert flights[1].ttft_s == pytest.approx(0.01)


def test_agents_with_their_own_view_do_not_see_each_others_charges():
    """Least loaded means least of its own: two agents may both take the same replica."""
    requests = [asked(0.001 * n, 200) for n in range(200)]
    one = summarize("one", fly(requests, replicas=8, knowledge="agent", agents=1), 8)
    eight = summarize("eight", fly(requests, replicas=8, knowledge="agent", agents=8), 8)
    assert one.balance == pytest.approx(1.0)
    assert eight.ttft_mean_s > one.ttft_mean_s


def test_agents_that_tell_each_other_their_load_choose_nearly_as_one(
    monkeypatch: pytest.MonkeyPatch,
):
    requests = [asked(0.03 * n, 200) for n in range(300)]

    def wait_s(agents: int) -> float:
        flown = fly(requests, replicas=8, knowledge="agent", agents=agents, policy="expected_ttft")
        return summarize("", flown, 8).ttft_mean_s or 0.0

    one, told = wait_s(1), wait_s(4)
    monkeypatch.setattr(knowledge, "COUNTED_BY", ())
    untold = wait_s(4)
    assert told - one < (untold - one) / 2


def test_what_is_held_back_is_sent_in_its_turn_and_short_prompts_pass_long_ones():
    requests = [asked(0.0, 400)] * 6 + [asked(0.01, 400), asked(0.02, 10)]
    settings = PoolSettings(policy="expected_ttft", bind_ahead_s=0.5)
    whole = ReplayPlan(
        replicas=2, profile=PLAIN, settings=settings, knowledge="oracle", prefill_only=True
    )
    flights = FleetReplay(whole).run(requests)
    assert all(flight.ttft_s is not None and flight.reason for flight in flights)
    assert flights[7].first_token_at < flights[6].first_token_at


def test_what_can_never_fit_is_shed_with_the_reason():
    fits, too_long = fly([asked(0.0, 400), asked(0.1, 501)])
    assert fits.ttft_s == pytest.approx(0.4)
    assert too_long.engine is None
    assert too_long.reason == "no replica's KV cache could hold it"
    assert summarize("p", [fits, too_long], 2).shed == 1


def test_sessions_stay_on_their_replica_by_hash():
    requests = [asked(n * 0.5, 10, session=n % 4 << 61) for n in range(40)]
    flights = fly(requests, policy="consistent_hash", replicas=4)
    homes = {f.request.session: f.engine for f in flights}
    assert all(homes[f.request.session] == f.engine for f in flights)


def test_nothing_replayed_is_no_figure():
    result = summarize("p", [], 2)
    assert (result.balance, result.ttft_mean_s, result.ttft_p99_s) == (None, None, None)
    assert percentile([], 0.5) is None
    assert hit_rate_over_time([], 2) == [(0.25, None), (0.75, None)]


def test_a_percentile_is_a_value_that_occurred():
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, share) for share in (0.0, 0.25, 0.5, 0.51, 0.99)] == [1, 1, 2, 3, 4]


def test_an_oracle_that_looks_only_where_something_happened_misses_nothing():
    """Its figures are those of looking everywhere, at every choice."""
    profile = dataclasses.replace(A100_QWEN_7B, max_running_sequences=3, step_token_budget=64)
    requests = [asked(n * 0.07, 30 + n * 37 % 400, output=n % 9 * 5) for n in range(60)]
    flown = FleetReplay(plan(profile=profile, replicas=5, prefill_only=False))
    pool = flown._agents[0].pool
    for number, request in enumerate(requests):
        flown._advance(request.at_s)
        flown._agents[0].knowledge.before_choice(request.at_s)
        for replica, scheduler in zip(pool.replicas, flown._engines.schedulers, strict=True):
            left = scheduler.prefill().at(request.at_s)
            left += sum(s.left for s in scheduler._waiting)
            assert replica.inflight_tokens == pytest.approx(left, abs=1)
            assert replica.inflight_requests == scheduler.running + scheduler.waiting
        flown._send(number, request)
    assert max(f.engine for f in flown._flights) == 4


# An independent model of the same queue and cache, published with the traces: token hit rate,
# busiest over mean work, mean TTFT. Eight replicas, recorded times, caches of 2,000 blocks.
YARDSTICK = [
    ("conversation", 7300.0, "round_robin", 1.25, 0.077, 1.05, 4.05),
    ("conversation", 7300.0, "least_tokens", 1.25, 0.077, 1.03, 1.93),
    ("conversation", 7300.0, "consistent_hash", 1e9, 0.259, 1.10, 3.85),
    ("synthetic", 8500.0, "round_robin", 1.25, 0.057, 1.08, 3.76),
    ("synthetic", 8500.0, "least_tokens", 1.25, 0.060, 1.07, 1.69),
    ("synthetic", 8500.0, "expected_ttft", 1.25, 0.333, 1.01, 1.17),  # its best: 0.295, 1.10, 1.18
]


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.exists(), reason="no sample data beside the checkout (../shared)")
@pytest.mark.parametrize(("name", "rate", "policy", "bound", "hits", "balance", "ttft"), YARDSTICK)
def test_real_traces_give_what_an_independent_model_gives(
    capsys, name, rate, policy, bound, hits, balance, ttft
):
    words = (TRACES / f"{name}_trace.jsonl", "--knowledge", "oracle", "--utilisation", "recorded",
             "--prefill-rate", rate, "--policy", policy, "--ring-bound", bound)  # fmt: skip
    (row,) = json.loads(run(capsys, *words, "--json"))
    assert row["hit_rate"] == pytest.approx(hits, abs=0.01)
    assert row["balance"] == pytest.approx(balance, abs=0.06)
    assert row["ttft_mean_s"] == pytest.approx(ttft, rel=0.03)


# Any trace

requests_lists = st.lists(
    st.tuples(
        st.floats(0, 0.3),  # seconds since the one before
        st.integers(1, 120),  # prompt tokens
        st.integers(0, 40),  # output tokens
        st.integers(0, 3),  # family: whose prompts share their beginning
    ),
    min_size=1,
    max_size=40,
)
engines = st.builds(
    lambda plain, **figures: PLAIN if plain else dataclasses.replace(A100_QWEN_7B, **figures),
    st.booleans(),
    kv_blocks=st.integers(16, 40),
    block_tokens=st.just(10),
    max_running_sequences=st.integers(1, 4),
    step_token_budget=st.integers(8, 64),
)


@given(
    requests_lists,
    engines,
    st.sampled_from(list(POLICIES)),
    st.sampled_from(["oracle", "agent"]),
    st.integers(1, 3),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=150)
def test_every_request_ends_once_in_time_and_no_token_is_lost(
    drawn, profile, policy, knowledge, agents, replicas
):
    at_s, requests = 0.0, []
    for gap_s, prompt, output, family in drawn:
        at_s += gap_s
        blocks = tuple(family * 1000 + i for i in range(prompt // 10))
        requests.append(asked(at_s, prompt, output=output, session=family, blocks=blocks))
    flown = FleetReplay(
        plan(
            policy,
            profile,
            replicas=replicas,
            knowledge=knowledge,
            agents=agents,
            prefill_only=profile is PLAIN,
        )
    )
    flights = flown.run(requests)

    assert [f.number for f in flights] == list(range(len(requests)))
    for flight in flights:
        assert flight.engine is not None
        assert 0 <= flight.cached_tokens < flight.request.prompt_tokens
        assert flight.request.at_s <= flight.first_token_at <= flight.ended_at
    for scheduler in flown._engines.schedulers:
        assert (scheduler.running, scheduler.waiting, scheduler.pool.used) == (0, 0, 0)
        assert scheduler.pool.cached <= scheduler.pool.capacity
    counted = [
        s.counters.prompt_tokens - s.counters.prefix_cache_hits for s in flown._engines.schedulers
    ]
    assert work_of(flights, replicas) == counted
    assert flown._truth._queued_tokens == [0] * replicas
    assert not any(flown._truth._promised)
    if knowledge == "agent":
        for agent in flown._agents:
            assert all(r.inflight_tokens == 0 for r in agent.pool.replicas)


@given(requests_lists)
@settings(deadline=None, max_examples=50)
def test_plain_prefill_is_a_queue_served_in_order(drawn):
    """First come, first served at a rate: what a replay says is what arithmetic says."""
    at_s, requests = 0.0, []
    for gap_s, prompt, _, _ in drawn:
        at_s += gap_s
        requests.append(asked(at_s, prompt))
    free_at = 0.0
    for flight in fly(requests, replicas=1):
        free_at = max(free_at, flight.request.at_s) + flight.request.prompt_tokens / 1000.0
        assert flight.first_token_at == pytest.approx(free_at)
