"""How many requests a replica has room for, and how long a full engine is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.choose import FULL, exclusion
from routing_agent.core.figures import EngineFigures
from routing_agent.core.policy import RouteRequest
from routing_agent.core.retries import refused_for_s
from routing_agent.core.waiting import Pace
from tests.agent.core.build import NOW, replica

ASKED = RouteRequest(tokens=10, session=1)


def test_an_engine_that_tells_nothing_has_room_for_any() -> None:
    one = replica()
    one.note_scrape(EngineFigures(running=500, waiting=500), NOW)
    assert one.ceiling is None
    assert one.has_room()


def test_what_it_computes_at_once_and_a_tenth_is_its_room() -> None:
    one = replica()
    one.note_facts(kv_capacity_tokens=None, max_running=20)
    for _ in range(22):
        assert exclusion(ASKED, one, NOW) == ""
        one.begin(10, NOW)
    assert exclusion(ASKED, one, NOW) == FULL
    one.release(10)
    assert exclusion(ASKED, one, NOW) == ""


def test_the_pools_own_ceiling_comes_first() -> None:
    one = replica(max_concurrency_per_replica=2)
    one.note_facts(kv_capacity_tokens=None, max_running=20)
    one.note_scrape(EngineFigures(running=9), NOW)
    assert one.ceiling == 2


def test_what_others_have_in_it_is_left_to_them_while_figures_are_fresh() -> None:
    one = replica()
    one.note_facts(kv_capacity_tokens=None, max_running=20)
    one.begin(10, NOW)
    one.note_scrape(EngineFigures(running=10, waiting=5), NOW)
    assert one.ceiling == 22 - 14
    one.note_scrape(EngineFigures(running=0), NOW)
    assert one.ceiling == 22
    one.note_scrape(EngineFigures(running=10), NOW)
    assert one.ceiling == 22 - 9
    one.note_scrape_error("no answer")
    assert one.ceiling == 22
    one.note_scrape(EngineFigures(), NOW)
    assert one.ceiling == 22


def test_the_first_good_scrape_after_a_failed_one_tells_what_others_have_in_it() -> None:
    one = replica()
    one.note_scrape_error("no answer")
    one.note_scrape(EngineFigures(running=5, waiting=3), NOW)
    assert (one.others_inflight, one.others_waiting) == (8, 4)


@pytest.mark.parametrize(
    ("said", "pause_s"),
    [(None, 1.0), (b"7", 7.0), (b" 3 ", 3.0), (b"0", 1.0), (b"Sun, 06 Nov 1994", 1.0), (b"", 1.0)],
)
def test_a_full_engine_is_left_alone_as_long_as_it_says(said: bytes | None, pause_s: float) -> None:
    assert refused_for_s(said) == pause_s


@given(st.binary(max_size=12))
def test_whatever_it_says_the_pause_is_a_second_at_least(said: bytes) -> None:
    assert refused_for_s(said) >= 1.0


def test_who_was_refused_does_not_count_as_served() -> None:
    pace = Pace()
    pace.was_refused()
    for i in range(4):
        pace.served(NOW + i)
    before = pace.wait_s(10, NOW + 10)
    pace.served(NOW + 10)
    pace.was_refused()
    assert pace.wait_s(10, NOW + 10) == before
