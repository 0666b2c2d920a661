"""Prompts that a replica has yet to compute, its learned speed, sessions that a pool remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core import sessions
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import MOST_PROGRESS, Prefill
from routing_agent.core.sessions import Sessions
from routing_agent.core.speed import PRIOR_TOKENS_PER_S, Speed
from tests.agent.core.build import NOW, pool_state


def test_a_prompt_is_charged_until_its_first_token_and_its_progress_is_estimated() -> None:
    prefill = Prefill()
    first, second = prefill.place(4300, NOW), prefill.place(1000, NOW)
    assert prefill.backlog_tokens(NOW) == 5300
    assert prefill.backlog_tokens(NOW + 0.5) == pytest.approx(5300 - 2150)
    # One that stalls stays loaded, however long it takes.
    assert prefill.backlog_tokens(NOW + 99) == pytest.approx(5300 - 4300 * MOST_PROGRESS)
    prefill.note_first_token(first, NOW + 1)
    prefill.note_first_token(first, NOW + 2)
    assert (prefill.queued_tokens, prefill.waiting) == (1000, 1)
    prefill.give_up(second, NOW + 1)
    prefill.give_up(second, NOW + 1)
    assert prefill.backlog_tokens(NOW + 1) == 0


def test_a_plain_answer_shows_no_first_token_so_its_prompt_is_through_in_its_time() -> None:
    prefill = Prefill()
    plain = prefill.place(4300, NOW, shows_first_token=False)
    prefill.place(4300, NOW)
    assert prefill.backlog_tokens(NOW + 0.5) == pytest.approx(8600 - 2150)
    assert prefill.backlog_tokens(NOW + 1.5) == pytest.approx(4300 - 2150)
    prefill.give_up(plain, NOW + 3)
    assert prefill.queued_tokens == 4300


@given(
    rate=st.floats(50, 200_000),
    sizes=st.lists(st.integers(100, 50_000), min_size=60, max_size=60),
)
def test_the_speed_is_learned_from_prompts_in_a_row(rate: float, sizes: list[int]) -> None:
    prefill, now = Prefill(), NOW
    placements = [prefill.place(size, NOW) for size in sizes]
    for placement in placements:
        now += placement.uncached_tokens / rate
        prefill.note_first_token(placement, now)
    # What it began with weighs as half a second.
    slack = 0.02 + (rate + PRIOR_TOKENS_PER_S) / sum(sizes)
    assert prefill.tokens_per_s == pytest.approx(rate, rel=slack)


def test_prompts_computed_together_teach_their_joint_speed() -> None:
    prefill, now = Prefill(), NOW
    for _ in range(40):
        both = [prefill.place(5000, now), prefill.place(5000, now)]
        now += 1.0
        for placement in both:
            prefill.note_first_token(placement, now)
    assert prefill.tokens_per_s == pytest.approx(10_000, rel=0.05)


def test_a_first_token_out_of_turn_does_not_count_time_twice() -> None:
    prefill = Prefill()
    first, second = prefill.place(1000, NOW), prefill.place(1000, NOW)
    prefill.note_first_token(second, NOW + 10)
    slow = prefill.tokens_per_s
    prefill.note_first_token(first, NOW + 10)
    assert prefill.tokens_per_s > slow
    third, fourth = prefill.place(10, NOW + 10), prefill.place(20, NOW + 10)
    prefill.give_up(fourth, NOW + 11)
    assert prefill.queued_tokens == 10
    prefill.give_up(third, NOW + 11)
    assert prefill.queued_tokens == 0


def test_a_placement_is_charged_cached_and_remembered() -> None:
    pool = pool_state(2, session_lifetime_s=60)
    one, other = pool.replicas
    asked = RouteRequest(900, 7, prompt_tokens=640, blocks=range(9), block_tokens=64.0)
    placement = pool.note_placed(asked, one, now=NOW)
    assert (placement.uncached_tokens, one.prefill.queued_tokens) == (640, 640)
    assert pool.note_placed(asked, one, now=NOW).uncached_tokens == 64
    assert pool.sessions.home(7, NOW - 60) == one.id
    assert pool.sessions.moved_total == 0
    pool.note_placed(RouteRequest(900, 7, prompt_tokens=640), other, now=NOW + 1)
    assert (pool.sessions.moved_total, other.prefill.queued_tokens) == (1, 640)
    assert pool.sessions.home(7, NOW + 2) == ""
    pool.note_placed(RouteRequest(900, 7), one, now=NOW + 99)
    assert (pool.sessions.moved_total, len(pool.sessions)) == (1, 1)  # it had been forgotten


def test_sessions_are_bounded_by_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Sessions()
    for session in range(10):
        known.note(session, "r", now=NOW + session, lifetime_s=5)
    assert len(known) == 6
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    known.note(10, "r", now=NOW + 10, lifetime_s=99)
    known.note(11, "r", now=NOW + 10, lifetime_s=99)
    known.note(12, "r", now=NOW + 10, lifetime_s=99)
    assert len(known) == 3


def test_a_replica_leans_on_its_pools_speed_and_shared_time_counts_little() -> None:
    pool, one, new = Speed(), Speed(), Speed()
    one.join(pool)
    one.join(pool)
    for _ in range(50):
        one.note(1000, 1.0)
    new.join(pool)
    assert new.tokens_per_s == pytest.approx(pool.tokens_per_s) == pytest.approx(1000, rel=0.1)
    one.note(10, 60.0, is_shared=True)  # the engine was busy with others
    assert one.tokens_per_s > 900
    one.clear()
    assert one.tokens_per_s == pytest.approx(pool.tokens_per_s)
