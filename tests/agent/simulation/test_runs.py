"""Going from event to event gives what going step by step gives, only sooner."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.simulation.profiles import A100_QWEN_7B, Profile
from routing_agent.simulation.scheduler import Scheduler
from routing_agent.simulation.sequences import Event, Request


def profile(**changes: Any) -> Profile:
    return dataclasses.replace(A100_QWEN_7B, **changes)


engines = st.builds(
    profile,
    kv_blocks=st.integers(6, 14),
    block_tokens=st.sampled_from([4, 16]),
    max_running_sequences=st.integers(1, 4),
    step_token_budget=st.integers(4, 64),
    prefix_cache=st.booleans(),
    adapter_slots=st.integers(1, 2),
    adapter_host_slots=st.integers(1, 3),
)
Demand = tuple[int, int, int, str, float, float | None]
demands = st.lists(
    st.tuples(
        st.integers(1, 50),  # prompt tokens
        st.integers(0, 30),  # output tokens
        st.integers(0, 2),  # which shared prefix
        st.sampled_from(["", "", "a", "b", "c"]),  # adapter
        st.floats(0, 0.4),  # seconds since the one before
        st.one_of(st.none(), st.none(), st.floats(0.001, 0.5)),  # cancelled after so many seconds
    ),
    min_size=1,
    max_size=16,
)


def request(number: int, demand: Demand, engine: Profile) -> Request:
    prompt, output, family, adapter, _, _ = demand
    prompt = max(1, min(prompt, engine.longest_request_tokens - output))
    output = min(output, engine.longest_request_tokens - prompt)
    hashes = tuple(family * 1000 + i for i in range(prompt // engine.block_tokens))
    return Request(
        id=str(number),
        prompt_tokens=prompt,
        output_tokens=output,
        block_hashes=hashes,
        adapter=adapter,
    )


def outcome(
    engine: Profile, demand: list[Demand], *, every_token: bool
) -> tuple[list[Event], list[tuple[int, int, int]], Scheduler]:
    """Give the events less all tokens but the first, what a look saw each time, and the engine."""
    scheduler = Scheduler(engine, every_token=every_token)
    moments: list[tuple[float, Request | str]] = []
    at = 0.0
    for number, one in enumerate(demand):
        at += one[4]
        moments.append((at, request(number, one, engine)))
        if one[5] is not None:
            moments.append((at + one[5], str(number)))
    events: list[Event] = []
    looks: list[tuple[int, int, int]] = []
    due: float | None = None

    def go_to(moment: float) -> None:
        nonlocal due
        while due is not None and due <= moment:
            happened, due = scheduler.step(due)
            events.extend(happened)

    for moment, subject in sorted(moments, key=lambda entry: entry[0]):
        go_to(moment)
        scheduler.settle(moment)
        pool = scheduler.pool
        assert pool.used + pool.cached <= pool.capacity
        looks.append((scheduler.running, scheduler.waiting, scheduler.counters.generation_tokens))
        if isinstance(subject, Request):
            due = scheduler.submit(subject, moment)
        else:
            scheduler.cancel(subject, moment)
            due = scheduler._due
    go_to(float("inf"))
    seen: set[str] = set()
    firsts = []
    for event in events:
        if event.kind == "token" and event.request_id in seen:
            continue
        if event.kind == "token":
            seen.add(event.request_id)
        firsts.append(event)
    return firsts, looks, scheduler


@given(engines, demands)
@settings(deadline=None, max_examples=300)
def test_runs_of_steps_end_when_their_single_steps_would(
    engine: Profile, demand: list[Demand]
) -> None:
    steps, looks_stepping, stepping = outcome(engine, demand, every_token=True)
    runs, looks_running, running = outcome(engine, demand, every_token=False)
    assert [e[:2] for e in runs] == [e[:2] for e in steps]
    assert [e.at for e in runs] == pytest.approx([e.at for e in steps], abs=1e-6)
    assert looks_running == looks_stepping
    assert running.counters == dataclasses.replace(
        stepping.counters, busy_s=pytest.approx(stepping.counters.busy_s)
    )
    assert (running.pool.used, running.running, running.waiting) == (0, 0, 0)


@given(engines, demands)
@settings(deadline=None, max_examples=100)
def test_time_only_goes_forward_and_every_request_ends_once(
    engine: Profile, demand: list[Demand]
) -> None:
    events, _, _ = outcome(engine, [(*one[:5], None) for one in demand], every_token=False)
    assert [e.at for e in events] == sorted(e.at for e in events)
    ends = sorted(e.request_id for e in events if e.kind == "finished")
    assert ends == sorted(str(number) for number in range(len(demand)))


def test_a_long_answer_is_one_run() -> None:
    scheduler = Scheduler(profile(), every_token=False)
    due = scheduler.submit(
        Request(id="r", prompt_tokens=100, output_tokens=2001, block_hashes=()), now=0.0
    )
    calls = 0
    while due is not None:
        events, due = scheduler.step(due)
        calls += 1
    assert events == [Event("finished", "r", pytest.approx(100 / 4300 + 2000 * 0.012025))]
    assert calls == 3  # the batch is formed; the prompt; the whole answer
    assert scheduler.counters.steps == 2001


def test_a_look_into_a_run_sees_the_tokens_so_far() -> None:
    scheduler = Scheduler(profile(), every_token=False)
    due = scheduler.submit(
        Request(id="r", prompt_tokens=1, output_tokens=1001, block_hashes=()), now=0.0
    )
    for _ in range(2):
        assert due is not None
        _, due = scheduler.step(due)
    scheduler.settle(0.012 + 0.012025 * 160)
    assert scheduler.counters.generation_tokens == 161
    assert scheduler.pool.used == 11  # 161 tokens have KV: the prompt and all but the last
    assert scheduler.busy_s(1.0) == pytest.approx(0.012 + 0.012025 * 160)
