"""LoRA adapters, sleep and loading of the engine model."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.simulation.adapters import AdapterSlots
from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.scheduler import Scheduler
from routing_agent.simulation.sequences import Event, Request

STEP_S = 0.012


def engine(**figures: Any) -> Scheduler:
    figures = {"adapter_slots": 1, "adapter_copy_s": 0.5, "adapter_read_s": 2.0} | figures
    return Scheduler(dataclasses.replace(A100_QWEN_7B, **figures), every_token=False)


def ask(id: str, adapter: str = "", output: int = 1) -> Request:
    return Request(id=id, prompt_tokens=1, output_tokens=output, adapter=adapter)


def run(scheduler: Scheduler, due: float | None) -> list[Event]:
    events: list[Event] = []
    while due is not None:
        happened, due = scheduler.step(due)
        events += happened
    return events


def finish(scheduler: Scheduler, request: Request, now: float) -> float:
    """Give how long a request takes alone."""
    return run(scheduler, scheduler.submit(request, now))[-1].at - now


def test_the_first_use_reads_and_copies_the_next_only_uses():
    scheduler = engine()
    assert finish(scheduler, ask("1", "a"), 0.0) == pytest.approx(2.5 + STEP_S)
    assert finish(scheduler, ask("2", "a"), 10.0) == pytest.approx(STEP_S)
    assert scheduler.adapters.resident == ("a",)


def test_an_adapter_pushed_out_of_its_slot_is_copied_again_from_host_memory():
    scheduler = engine()
    for number, adapter in enumerate("ab"):
        finish(scheduler, ask(str(number), adapter), 10.0 * number)
    assert finish(scheduler, ask("again", "a"), 30.0) == pytest.approx(0.5 + STEP_S)


def test_host_memory_forgets_what_was_used_longest_ago():
    scheduler = engine(adapter_host_slots=2)
    for number, adapter in enumerate("abc"):
        finish(scheduler, ask(str(number), adapter), 10.0 * number)
    assert finish(scheduler, ask("again", "a"), 40.0) == pytest.approx(2.5 + STEP_S)


def test_one_without_a_slot_is_deferred_and_overtaken():
    scheduler = engine()
    due = scheduler.submit(ask("1", "a", output=50), 0.0)
    scheduler.submit(ask("2", "b"), 0.0)
    scheduler.submit(ask("3"), 0.0)
    scheduler.step(due)
    assert (scheduler.running, scheduler.waiting, scheduler.deferred) == (2, 1, 1)
    ends = [e.request_id for e in run(scheduler, scheduler._due) if e.kind == "finished"]
    assert ends == ["3", "1", "2"]


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.sampled_from("abcdef"), max_size=40))
def test_slots_hold_what_is_in_use_and_no_more_than_they_are(slots, host_slots, wanted):
    adapters = AdapterSlots(slots, host_slots, copy_s=1.0, read_s=2.0)
    in_use: list[str] = []
    for name in wanted:
        while not adapters.has_room(name):
            adapters.give_back(in_use.pop(0))
        was_resident = name in adapters.resident
        assert (adapters.take(name) == 0.0) == was_resident
        in_use.append(name)
        assert len(adapters.resident) <= slots
        assert set(in_use) == set(adapters.running) <= set(adapters.resident)


def test_asleep_it_computes_nothing_and_wakes_with_an_empty_cache():
    scheduler = engine()
    request = Request(id="1", prompt_tokens=160, output_tokens=100, block_hashes=range(10))
    scheduler.step(scheduler.submit(request, 0.0))
    scheduler.sleep(0.5)
    assert scheduler.is_asleep
    assert (scheduler.running, scheduler.waiting, scheduler.pool.used) == (0, 1, 0)
    assert scheduler.pool.cached == 0
    assert scheduler.submit(ask("2"), 1.0) is None
    assert scheduler.step(5.0) == ([], None)
    due = scheduler.load(10.0, takes_s=0.6)
    assert due == pytest.approx(10.6)
    ends = {e.request_id: e.at for e in run(scheduler, due) if e.kind == "finished"}
    assert set(ends) == {"1", "2"}
    assert min(ends.values()) > 10.6


def test_what_comes_while_weights_load_waits_until_they_are_there():
    scheduler = engine()
    scheduler.load(0.0, takes_s=80.0)
    due = scheduler.submit(ask("1"), 3.0)
    assert due == 80.0
    assert run(scheduler, due)[-1].at == pytest.approx(80.0 + STEP_S)


def test_one_asleep_can_still_be_left():
    scheduler = engine()
    scheduler.sleep(0.0)
    scheduler.submit(ask("1"), 1.0)
    assert scheduler.cancel("1", 2.0)
    assert scheduler.waiting == 0
