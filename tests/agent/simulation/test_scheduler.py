"""The engine model: invariants under any load, and the few figures that everything rests on."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.simulation.profiles import A100_QWEN_7B, Profile
from routing_agent.simulation.scheduler import Event, Request, Scheduler


def profile(**changes: Any) -> Profile:
    return dataclasses.replace(A100_QWEN_7B, **changes)


def request(
    id: str = "r", prompt: int = 100, output: int = 10, hashes: tuple[int, ...] = ()
) -> Request:
    return Request(id=id, prompt_tokens=prompt, output_tokens=output, block_hashes=hashes)


def run(scheduler: Scheduler, now: float = 0.0) -> list[Event]:
    """Step until idle."""
    events: list[Event] = []
    due: float | None = now
    while due is not None:
        now = max(now, due)
        happened, due = scheduler.step(now)
        events += happened
    return events


def times(events: list[Event], kind: str, id: str = "r") -> list[float]:
    return [e.at for e in events if e.kind == kind and e.request_id == id]


def test_a_prompt_is_computed_at_the_prefill_rate_and_then_makes_a_token_a_step() -> None:
    scheduler = Scheduler(profile())
    scheduler.submit(request(prompt=4300, output=3), now=0.0)
    tokens = times(run(scheduler), "token")
    assert tokens[0] == pytest.approx(1.0, rel=0.01)
    assert [b - a for a, b in itertools.pairwise(tokens)] == pytest.approx([0.012025] * 2)


def test_a_short_step_takes_no_less_than_reading_the_weights() -> None:
    scheduler = Scheduler(profile())
    scheduler.submit(request(prompt=1, output=1), now=5.0)
    assert times(run(scheduler, 5.0), "token") == pytest.approx([5.012])


def test_a_long_prompt_delays_running_streams_by_one_chunk_only() -> None:
    scheduler = Scheduler(profile(step_token_budget=430))
    scheduler.submit(request("stream", prompt=1, output=60), now=0.0)
    scheduler.submit(request("long", prompt=4300, output=1), now=0.0)
    tokens = times(run(scheduler), "token", "stream")
    gaps = [b - a for a, b in itertools.pairwise(tokens)]
    assert max(gaps) < 0.11


def test_what_does_not_fit_waits_and_nothing_overtakes_it() -> None:
    scheduler = Scheduler(profile(kv_blocks=10, block_tokens=10))
    for id, prompt in (("first", 60), ("second", 60), ("third", 10)):
        scheduler.submit(request(id, prompt=prompt, output=2), now=0.0)
    scheduler.step(0.0)
    assert (scheduler.running, scheduler.waiting) == (1, 2)
    started = [e.request_id for e in run(scheduler) if e.kind == "started"]
    assert started == ["second", "third"]


def test_a_repeated_prompt_comes_from_the_cache_except_its_last_block() -> None:
    scheduler = Scheduler(profile(block_tokens=10))
    hashes = tuple(range(10))
    scheduler.submit(request("a", prompt=100, output=1, hashes=hashes), now=0.0)
    run(scheduler)
    scheduler.submit(request("b", prompt=100, output=1, hashes=hashes), now=10.0)
    scheduler.step(10.0)
    assert scheduler.cached_tokens("b") == 90
    assert scheduler.counters.prefix_cache_hits == 90
    assert scheduler.counters.prefix_cache_queries == 200


def test_the_answer_is_cached_too_so_that_the_next_turn_of_a_chat_is_cheap() -> None:
    scheduler = Scheduler(profile(block_tokens=10))
    hashes = tuple(range(20))
    scheduler.submit(request("turn-1", prompt=50, output=60, hashes=hashes[:11]), now=0.0)
    run(scheduler)
    scheduler.submit(request("turn-2", prompt=150, output=1, hashes=hashes), now=10.0)
    scheduler.step(10.0)
    assert scheduler.cached_tokens("turn-2") == 100  # the last token said has no KV yet


def test_idle_blocks_are_evicted_oldest_first_and_a_prefix_from_its_tail() -> None:
    scheduler = Scheduler(profile(block_tokens=10, kv_blocks=10))
    scheduler.submit(request("old", prompt=60, output=1, hashes=tuple(range(6))), now=0.0)
    run(scheduler)
    scheduler.submit(request("new", prompt=70, output=1, hashes=tuple(range(100, 107))), now=5.0)
    run(scheduler, 5.0)
    assert scheduler.pool.matching(range(6)) == 3


def test_usage_falls_to_nothing_when_idle_though_content_stays_cached() -> None:
    scheduler = Scheduler(profile())
    scheduler.submit(request(prompt=160, output=1, hashes=tuple(range(10))), now=0.0)
    run(scheduler)
    assert scheduler.kv_usage == 0.0
    assert scheduler.pool.cached == 10


def test_when_blocks_run_out_the_newest_sequence_is_computed_again_and_still_finishes() -> None:
    scheduler = Scheduler(profile(kv_blocks=10, block_tokens=10, prefix_cache=False))
    for id in ("old", "new"):
        scheduler.submit(request(id, prompt=40, output=50), now=0.0)
    events = run(scheduler)
    assert {e.request_id for e in events if e.kind == "preempted"} == {"new"}
    assert len(times(events, "token", "new")) == 50
    assert len(times(events, "finished", "new")) == 1


def test_a_cancelled_request_leaves_at_once_whether_running_or_waiting() -> None:
    scheduler = Scheduler(profile(max_running_sequences=1))
    scheduler.submit(request("running"), now=0.0)
    scheduler.submit(request("waiting"), now=0.0)
    scheduler.step(0.0)
    assert scheduler.cancel("waiting", now=0.001)
    assert scheduler.cancel("running", now=0.001)
    assert (scheduler.running, scheduler.waiting, scheduler.pool.used) == (0, 0, 0)
    assert not scheduler.cancel("running", now=0.002)


def test_a_frozen_engine_does_not_make_up_for_lost_time() -> None:
    scheduler = Scheduler(profile())
    scheduler.submit(request(output=100), now=0.0)
    _, due = scheduler.step(0.0)
    _, due = scheduler.step(60.0)
    assert due is not None
    assert due > 60.0


def test_an_engine_slowed_down_takes_that_many_times_as_long() -> None:
    scheduler = Scheduler(profile())
    scheduler.slowdown = 10.0
    scheduler.submit(request(prompt=1, output=1), now=0.0)
    assert times(run(scheduler), "token") == pytest.approx([0.12])


def test_a_request_that_can_never_fit_is_refused_with_the_limit() -> None:
    scheduler = Scheduler(profile(kv_blocks=10, block_tokens=10))
    with pytest.raises(ValueError, match="101 tokens exceeds the engine's 100"):
        scheduler.submit(request(prompt=100, output=1), now=0.0)


def test_an_embedding_ends_with_its_prompt() -> None:
    scheduler = Scheduler(profile())
    scheduler.submit(request(prompt=50, output=0), now=0.0)
    assert [e.kind for e in run(scheduler)] == ["started", "finished"]


# Any load: small engines, so that blocks and places run out.
engines = st.builds(
    profile,
    kv_blocks=st.integers(4, 12),
    block_tokens=st.sampled_from([4, 16]),
    max_running_sequences=st.integers(1, 4),
    step_token_budget=st.integers(4, 64),
    prefix_cache=st.booleans(),
)
demands = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt tokens
        st.integers(0, 12),  # output tokens
        st.integers(0, 3),  # which shared prefix
        st.floats(0, 0.05),  # seconds since the one before
        st.one_of(st.none(), st.floats(0, 0.2)),  # cancelled after so many seconds
    ),
    min_size=1,
    max_size=25,
)


Demand = list[tuple[int, int, int, float, float | None]]


def check(scheduler: Scheduler) -> None:
    assert 0 <= scheduler.pool.used <= scheduler.pool.capacity
    assert scheduler.pool.used + scheduler.pool.cached <= scheduler.pool.capacity
    assert scheduler.running <= scheduler.profile.max_running_sequences


def timeline(demand: Demand, engine: Profile) -> list[tuple[float, Request | str]]:
    """Give submissions and cancellations in order of time."""
    moments: list[tuple[float, Request | str]] = []
    now = 0.0
    for number, (prompt, output, family, gap, patience) in enumerate(demand):
        now += gap
        prompt = min(prompt, engine.longest_request_tokens - 12)
        blocks = (prompt + output) // engine.block_tokens
        hashes = tuple(family * 1000 + i for i in range(blocks))
        moments.append((now, request(str(number), max(1, prompt), output, hashes)))
        if patience is not None:
            moments.append((now + patience, str(number)))
    return sorted(moments, key=lambda moment: moment[0])


@given(engines, demands)
@settings(deadline=None, max_examples=200)
def test_under_any_load_every_request_ends_once_and_no_block_is_lost(
    engine: Profile, demand: Demand
) -> None:
    scheduler = Scheduler(engine)
    events: list[Event] = []
    cancelled: list[str] = []
    due: float | None = None

    def step_until(moment: float) -> None:
        nonlocal due
        while due is not None and due <= moment:
            happened, due = scheduler.step(due)
            events.extend(happened)
            check(scheduler)

    for at, subject in timeline(demand, engine):
        step_until(at)
        if isinstance(subject, Request):
            scheduler.submit(subject, at)
            happened, due = scheduler.step(at)
            events.extend(happened)
        elif scheduler.cancel(subject, at):
            cancelled.append(subject)
        check(scheduler)
    step_until(float("inf"))

    ends = Counter([e.request_id for e in events if e.kind == "finished"] + cancelled)
    assert ends == {str(number): 1 for number in range(len(demand))}
    assert (scheduler.running, scheduler.waiting, scheduler.pool.used) == (0, 0, 0)
    started = [int(e.request_id) for e in events if e.kind == "started"]
    assert started == sorted(started)
    tokens = Counter(e.request_id for e in events if e.kind == "token")
    finished = {e.request_id for e in events if e.kind == "finished"}
    for number, (_, output, *_rest) in enumerate(demand):
        if str(number) in finished:
            assert tokens[str(number)] == output
    assert [e.at for e in events] == sorted(e.at for e in events)
