"""What counts against a promise, and what is left of the month's error budget."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import slos
from controlplane.domain.rollups import Figures
from controlplane.domain.slos import Objectives, Tally

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a month of 30 days
STATUSES = st.dictionaries(
    st.sampled_from(["200", "400", "404", "413", "429", "499", "500", "502", "503", "504"]),
    st.integers(0, 1000),
)


def standings(spent: Tally) -> tuple[slos.Standing, ...]:
    return slos.standings(Objectives(), spent, now=NOW)


def test_three_nines_of_thirty_days_are_43_minutes():
    found = slos.budget(Objectives(), Tally(covered_s=60), now=NOW)
    assert round(found.total_minutes, 1) == 43.2
    assert found.left_minutes == found.total_minutes
    assert found.spent_ratio == 0


@pytest.mark.parametrize(
    ("month", "minutes"), [(2, 40.32), (12, 44.64)], ids=["28 days", "31 days"]
)
def test_the_budget_goes_by_the_length_of_the_month(month, minutes):
    found = slos.budget(Objectives(), Tally(), now=datetime(2026, month, 3, tzinfo=UTC))
    assert found.total_minutes == pytest.approx(minutes)
    assert found.state == "no-data"


def test_december_ends_with_the_year():
    assert slos.month(datetime(2026, 12, 31, 23, 59, tzinfo=UTC)) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("minutes", "state"),
    [(0, "ok"), (21.5, "ok"), (21.7, "warning"), (43.1, "warning"), (43.3, "exhausted")],
)
def test_over_half_warns_and_all_of_it_freezes(minutes, state):
    found = slos.budget(Objectives(), Tally(covered_s=9e5, bad_s=minutes * 60), now=NOW)
    assert found.state == state
    assert (slos.freeze(found) is not None) == (state == "exhausted")
    assert f"{minutes:.1f} of 43.2 minutes" in found.reason


@given(STATUSES, st.integers(0, 3600))
@settings(max_examples=50, deadline=None)
def test_a_stretch_never_spends_more_than_its_length(statuses, covered_s):
    found = slos.tally(Figures(covered_s=covered_s, statuses=statuses), Objectives())
    assert 0 <= found.bad_s <= covered_s
    assert 0 <= found.failed <= found.bad <= found.valid
    assert (found.bad_s > 0) == (found.bad > 0 and covered_s > 0)


def test_a_clients_fault_is_no_part_of_it_and_a_full_pool_is():
    found = slos.tally(
        Figures(covered_s=60, statuses={"200": 1, "429": 1, "404": 7, "499": 7}), Objectives()
    )
    assert (found.valid, found.bad, found.failed, found.bad_s) == (2, 1, 0, 30)


def test_samples_above_the_limit_are_slow():
    counted = {0: 5, 999: 2, 3: -1}
    assert slos.slower(counted, 0.3) == 2


def test_tallies_add_up():
    total = slos.added([Tally(covered_s=60, bad=1), Tally(covered_s=30, bad=2, excluded_s=5)])
    assert total == Tally(covered_s=90, bad=3, excluded_s=5)
    assert slos.added([]) == Tally()


def test_promises_without_a_request_are_neither_kept_nor_broken():
    found = standings(Tally())
    assert [s.is_kept for s in found] == [None] * 4
    assert all(s.achieved is None and s.reason for s in found)


def test_each_promise_is_judged_by_its_own_figures():
    spent = Tally(
        covered_s=1000, bad_s=0.7, valid=1000, failed=6, ttft=100, ttft_slow=2, tpot=100,
        tpot_slow=1,
    )  # fmt: skip
    by_name = {s.name: s for s in standings(spent)}
    assert [by_name[n].is_kept for n in ("availability", "ttft", "tpot", "errors")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert "early warning" in by_name["availability"].reason
    good = standings(Tally(covered_s=1000, valid=1000, failed=1))
    assert "early" not in good[0].reason
    assert good[3].is_kept is True
    bad = standings(Tally(covered_s=10_000, bad_s=44 * 60))
    assert bad[0].is_kept is False
    assert "early" not in bad[0].reason


@pytest.mark.parametrize("bad_minutes", [0, 2, 43, 44, 60])
def test_availability_is_broken_when_the_budget_is_exhausted_and_not_before(bad_minutes):
    spent = Tally(covered_s=7200, bad_s=bad_minutes * 60)
    state = slos.budget(Objectives(), spent, now=NOW).state
    assert standings(spent)[0].is_kept == (state != "exhausted")


def test_a_burn_rate_says_how_many_times_too_fast_by_the_whole_window():
    assert slos.burn_rate(Objectives(), bad_s=1, window_s=100) == pytest.approx(10)
