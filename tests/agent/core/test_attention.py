"""The count of time in which our loop did not look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.attention import LATE_S, TICK_S, Attention, next_tick_s


def test_a_tick_in_time_loses_nothing():
    attention = Attention()
    assert attention.looked(100.0) == 0.0
    assert attention.looked(100.0 + TICK_S + LATE_S) == 0.0
    assert attention.lost_s(100.0 + TICK_S + LATE_S) == 0.0


def test_a_late_tick_loses_all_but_one_tick():
    attention = Attention()
    attention.looked(100.0)
    assert attention.looked(102.0) == 2.0 - TICK_S
    assert attention.lost_s(102.0) == 2.0 - TICK_S


def test_a_tick_that_is_overdue_counts_before_it_comes():
    attention = Attention()
    attention.looked(100.0)
    assert attention.lost_s(103.0) == 3.0 - TICK_S
    attention.looked(103.0)
    assert attention.lost_s(103.0) == 3.0 - TICK_S


def test_without_ticks_nothing_is_lost():
    attention = Attention()
    assert attention.lost_s(1e9) == 0.0
    attention.looked(1.0)
    attention.ended()
    assert attention.lost_s(1e9) == 0.0


@given(st.lists(st.floats(min_value=0.0, max_value=60.0), min_size=1, max_size=30))
def test_no_more_is_lost_than_time_has_passed(gaps):
    attention, now, told = Attention(), 0.0, 0.0
    attention.looked(now)
    for gap in gaps:
        now += gap
        before = attention.lost_s(now)
        told += attention.looked(now)
        assert before == attention.lost_s(now)
    assert 0.0 <= told <= now


@given(st.floats(0, 1e8), st.sampled_from([TICK_S, 0.5]))
def test_the_next_tick_is_soon_and_the_same_for_all(now: float, tick_s: float) -> None:
    wait_s = next_tick_s(now, tick_s)
    assert tick_s / 4 < wait_s <= 1.25 * tick_s
    ticks = (now + wait_s) / tick_s
    assert abs(ticks - round(ticks)) < 1e-4
