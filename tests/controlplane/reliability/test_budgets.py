"""Error budgets: what spends them, what does not, and that nothing is counted twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Conflict, Invalid
from controlplane.reliability import selectors, services
from controlplane.reliability.models import BudgetStep
from controlplane.telemetry.models import RollUp, Step
from tests.factories import WHY, make_pool

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def at_noon():
    with time_machine.travel(NOW, tick=False):
        make_pool("chat")
        yield


def book() -> str:
    return services.book_budgets(timezone.now())


def budget(pool: str = "chat"):
    return selectors.promise(pool).budget


def test_a_pool_of_which_nothing_is_known_has_its_whole_budget_and_says_so():
    found = selectors.promise("chat")
    assert found.budget.state == "no-data"
    assert round(found.budget.total_minutes, 1) == 43.2
    assert found.is_default
    assert found.burn_rates == {"5m": None, "30m": None, "1h": None, "6h": None}
    assert selectors.budget_freeze("chat") is None


def test_a_minute_of_outage_spends_a_minute_and_half_of_one_half(minute):
    minute(at=NOW - timedelta(minutes=5), statuses={"503": 40})
    minute(at=NOW - timedelta(minutes=4), statuses={"200": 50, "502": 50})
    book()
    assert budget().spent_minutes == pytest.approx(1.5)
    assert budget().state == "ok"


def test_a_full_pool_spends_and_a_clients_own_fault_does_not(minute):
    minute(at=NOW - timedelta(minutes=5), statuses={"429": 50, "200": 50, "400": 900, "499": 100})
    book()
    assert budget().spent_minutes == pytest.approx(0.5)


def test_booking_twice_spends_once_and_what_came_late_is_booked_again(minute):
    at = minute(at=NOW - timedelta(minutes=30), statuses={"200": 100})
    assert book() == "1 minute of pools booked"
    assert book() == "0 minutes of pools booked"
    minute(at=at, statuses={"200": 100, "500": 100})
    book()
    assert budget().spent_minutes == pytest.approx(0.5)


def test_a_backlog_is_booked_in_parts_the_oldest_first(minute, monkeypatch):
    monkeypatch.setattr(services.budgets, "AT_ONCE", 3)
    for n in range(1, 6):
        minute(at=NOW - timedelta(minutes=n), statuses={"500": 10})
    assert book() == "3 minutes of pools booked, 2 left for the next run"
    assert selectors.promise("chat").booked_until == NOW - timedelta(minutes=2)
    assert book() == "2 minutes of pools booked"
    assert budget().spent_minutes == pytest.approx(5.0)


def test_hours_outlive_their_minutes(minute):
    minute(at=NOW - timedelta(hours=40), statuses={"500": 10})
    book()
    with time_machine.travel(NOW + timedelta(days=3), tick=False):
        RollUp.objects.all().delete()
        book()
        assert not BudgetStep.objects.filter(step_s=Step.MINUTE).exists()
        assert budget().spent_minutes == pytest.approx(1.0)


def test_the_first_run_books_what_the_months_hours_still_tell(minute):
    minute(
        at=NOW.replace(minute=0) - timedelta(days=9), step=Step.HOUR, statuses={"500": 1, "200": 5}
    )
    minute(at=NOW.replace(minute=0) - timedelta(days=40), step=Step.HOUR, statuses={"500": 1})
    book()
    assert budget().spent_minutes == pytest.approx(10.0)


def test_an_exhausted_budget_freezes_and_says_why_until_the_month_ends(minute):
    for i in range(45):
        minute(at=NOW - timedelta(minutes=60 + i), statuses={"500": 10})
    book()
    why = selectors.budget_freeze("chat")
    assert why is not None
    assert "45.0 of 43.2 minutes" in why
    with time_machine.travel(datetime(2026, 12, 1, 0, 5, tzinfo=UTC), tick=False):
        assert selectors.budget_freeze("chat") is None


def test_half_a_budget_asks_for_action(minute):
    for i in range(22):
        minute(at=NOW - timedelta(minutes=60 + i), statuses={"500": 10})
    book()
    assert budget().state == "warning"
    assert "over half" in budget().reason


def test_a_maintenance_window_declared_afterwards_gives_its_minutes_back(minute):
    for i in range(10):
        minute(at=NOW - timedelta(minutes=20 - i), statuses={"500": 10})
    book()
    services.open_window(
        pool="chat",
        starts_at=NOW - timedelta(minutes=20),
        ends_at=NOW - timedelta(minutes=15),
        **WHY,
    )
    assert budget().spent_minutes == pytest.approx(5.0)
    assert budget().excluded_s == 300
    assert AuditEvent.objects.filter(verb="maintenance.open").exists()


def test_a_window_of_all_pools_counts_for_each_and_one_of_another_pool_does_not(minute):
    make_pool("other", model="m2")
    for pool in ("chat", "other"):
        minute(pool, at=NOW - timedelta(minutes=10), statuses={"500": 10})
    around = {"starts_at": NOW - timedelta(minutes=11), "ends_at": NOW - timedelta(minutes=5)}
    services.open_window(pool="other", **around, **WHY)
    book()
    assert budget("chat").spent_minutes == pytest.approx(1.0)
    assert budget("other").spent_minutes == 0
    services.open_window(**around, **WHY)
    assert budget("chat").spent_minutes == 0


def test_a_window_that_is_closed_early_counts_until_then():
    window = services.open_window(
        pool="chat", starts_at=NOW - timedelta(minutes=5), ends_at=NOW + timedelta(hours=1), **WHY
    )
    assert services.close_window(pk=window.pk, **WHY).ends_at == NOW
    ahead = services.open_window(
        starts_at=NOW + timedelta(hours=1), ends_at=NOW + timedelta(hours=2), **WHY
    )
    services.close_window(pk=ahead.pk, **WHY)
    assert [w.pk for w in selectors.windows()] == [window.pk]


@pytest.mark.parametrize(
    ("begin", "end"),
    [(0, -1), (0, 24 * 8 * 60), (-60 * 60, 1)],
    ids=["empty", "too long", "too far back"],
)
def test_a_window_that_makes_no_sense_is_refused(begin, end):
    with pytest.raises(Invalid):
        services.open_window(
            starts_at=NOW + timedelta(minutes=begin), ends_at=NOW + timedelta(minutes=end), **WHY
        )


def test_burn_rates_tell_how_many_times_too_fast_the_budget_goes(minute):
    for i in range(1, 61):
        minute(at=NOW - timedelta(minutes=i), statuses={"500": 2, "200": 98})
    book()
    burn = selectors.promise("chat").burn_rates
    assert burn["5m"] == pytest.approx(20)
    assert burn["1h"] == pytest.approx(20)


def test_the_bad_seconds_of_a_first_start_are_no_fast_burn(minute):
    minute(at=NOW - timedelta(minutes=1), statuses={"503": 50, "200": 50})
    book()
    burn = selectors.promise("chat").burn_rates
    assert burn["1h"] == pytest.approx(30 / 3600 / 0.001)  # 8.3: the alert begins at 14.4
    assert [s.is_kept for s in selectors.promise("chat").standings[:1]] == [True]


def test_promises_are_changed_by_compare_and_set_and_go_back_to_the_defaults():
    services.set_slo(pool="chat", availability_ratio=0.99, owner="ml", **WHY)
    found = selectors.promise("chat")
    assert (found.objectives.availability_ratio, found.owner, found.version) == (0.99, "ml", 1)
    assert round(found.budget.total_minutes) == 432
    with pytest.raises(Conflict):
        services.set_slo(pool="chat", owner="other", expected_version=7, **WHY)
    with pytest.raises(Invalid):
        services.set_slo(pool="chat", availability_ratio=1.0, **WHY)
    services.reset_slo(pool="chat", **WHY)
    assert selectors.promise("chat").is_default
    assert list(AuditEvent.objects.order_by("id").values_list("verb", flat=True)) == [
        "slo.set",
        "slo.reset",
    ]


def test_all_pools_are_read_with_as_many_queries_as_one(django_assert_max_num_queries, minute):
    for i in range(20):
        make_pool(f"p{i}", model=f"m{i}")
        minute(f"p{i}", at=NOW - timedelta(minutes=5), statuses={"500": i, "200": 20})
    book()
    with django_assert_max_num_queries(4):
        found = selectors.promises()
    assert found[0].pool == "p19"
    assert len(found) == 21


def test_versions_of_one_pool_are_one_promise(minute):
    at = NOW - timedelta(minutes=5)
    minute(at=at, version="v1", statuses={"200": 90})
    minute(at=at, version="v2", statuses={"500": 10})
    book()
    assert budget().spent_minutes == pytest.approx(0.1)
    assert budget().covered_s == 60


def test_slow_requests_break_the_promise_of_time_and_spend_no_minutes(minute):
    minute(at=NOW - timedelta(minutes=5), ttft={40: 90, 120: 10}, tpot={0: 100})
    book()
    ttft, tpot = (s for s in selectors.promise("chat").standings if s.name in {"ttft", "tpot"})
    assert ttft.is_kept is False
    assert tpot.is_kept is True
    assert budget().spent_minutes == 0
