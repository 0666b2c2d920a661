"""Limits, breaker, retries, deadlines, queue and estimates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core import load
from routing_agent.core.deadlines import first_byte_limit_s, next_deadline
from routing_agent.core.ejection import Breaker, may_eject
from routing_agent.core.limits import Bucket, TenantGate
from routing_agent.core.retries import (
    BUDGET_START,
    RetryBudget,
    backoff_s,
    judge_retry,
)
from routing_agent.core.waiting import Pace, WaitingLine, Wants, line_limit
from routing_agent.wire import TenantLimits
from tests.agent.core.build import NOW, chance, pool_state, replica, settings

MOMENTS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 60), st.booleans()), min_size=1, max_size=60
)


@given(MOMENTS, st.integers(0, 300), st.integers(0, 30), st.integers(0, 4))
def test_no_limit_is_ever_passed(
    moments: list[tuple[float, int, bool]], tokens: int, requests: int, running: int
) -> None:
    """R11: in any order of arrivals and ends, over any stretch of time."""
    limits = TenantLimits(
        tokens_per_minute=tokens, requests_per_minute=requests, concurrency=running
    )
    gate, now = TenantGate(limits, NOW), NOW
    admitted: list[tuple[float, int]] = []
    open_requests: list[int] = []
    for wait_s, cost, ends in moments:
        now += wait_s
        if ends and open_requests:
            charge = open_requests.pop()
            gate.release(charged=charge, used=charge)
        verdict = gate.admit(cost, now)
        assert verdict.admitted == (verdict.limit is None)
        if verdict.admitted:
            admitted.append((now, cost))
            open_requests.append(cost)
        else:
            assert verdict.retry_after_s >= 0
            assert str(verdict.limit) in verdict.reason
        assert 0 <= gate.running <= running
    span_s = now - NOW
    assert len(admitted) <= requests + requests * span_s / 60 + 1e-6
    assert sum(cost for _, cost in admitted) <= tokens + tokens * span_s / 60 + 1e-6


def test_unlimited_tenants_are_always_admitted() -> None:
    gate = TenantGate(TenantLimits(), NOW)
    assert all(gate.admit(10**9, NOW).admitted for _ in range(100))
    gate.release(charged=10**9, used=1)
    assert gate.running == 99


def test_a_limit_of_zero_admits_nothing() -> None:
    for limits in (
        TenantLimits(concurrency=0),
        TenantLimits(requests_per_minute=0),
        TenantLimits(tokens_per_minute=0),
    ):
        verdict = TenantGate(limits, NOW).admit(0, NOW)
        assert not verdict.admitted
        assert verdict.retry_after_s == 60.0


def test_unused_tokens_are_given_back() -> None:
    gate = TenantGate(TenantLimits(tokens_per_minute=100), NOW)
    assert gate.admit(100, NOW).admitted
    refused = gate.admit(50, NOW)
    assert (refused.limit, refused.retry_after_s) == ("tokens_per_minute", 30.0)
    gate.release(charged=100, used=20)
    assert gate.admit(80, NOW).admitted
    gate.release(charged=80, used=500)
    assert not gate.admit(1, NOW + 60).admitted


def test_what_never_fits_is_told_to_wait_a_minute() -> None:
    assert Bucket(10, NOW).wait_s(11) == 60.0
    assert Bucket(10, NOW).wait_s(5) == 0.0


def test_new_limits_keep_what_is_used() -> None:
    gate = TenantGate(TenantLimits(requests_per_minute=10, tokens_per_minute=100), NOW)
    gate.admit(50, NOW)
    gate.adopt(TenantLimits(requests_per_minute=20, tokens_per_minute=200), NOW)
    assert gate.requests is not None
    assert gate.tokens is not None
    assert (gate.requests.level, gate.tokens.level) == (18.0, 100.0)
    gate.adopt(TenantLimits(requests_per_minute=20, tokens_per_minute=200), NOW)
    gate.adopt(TenantLimits(), NOW)
    assert (gate.requests, gate.tokens) == (None, None)
    gate.adopt(TenantLimits(tokens_per_minute=0), NOW)
    gate.adopt(TenantLimits(tokens_per_minute=10), NOW)
    assert gate.tokens.level == 10.0


# -- breaker ---------------------------------------------------------------------------------------


def test_five_failures_in_the_window_open_the_breaker() -> None:
    made = replica()
    opened = [made.note_failure(NOW + i, trial=False, may_open=True) for i in range(5)]
    assert opened == [False] * 4 + [True]
    assert made.exclusion(NOW + 5) == "breaker open"
    assert (made.errors_total, made.ejections_total) == (5, 1)


def test_failures_spread_over_more_than_the_window_do_not() -> None:
    made = replica()
    for i in range(20):
        assert not made.note_failure(NOW + 10 * i, trial=False, may_open=True)


def test_the_pools_ceiling_keeps_it_closed() -> None:
    made = replica()
    assert not any(made.note_failure(NOW, trial=False, may_open=False) for _ in range(9))
    assert may_eject(ejected=0, replicas=2, ceiling_ratio=0.5)
    assert not may_eject(ejected=1, replicas=2, ceiling_ratio=0.5)
    assert not may_eject(ejected=0, replicas=1, ceiling_ratio=0.5)
    pool = pool_state(2)
    assert pool.may_eject()
    pool.replicas[0].note_health(False, "off", NOW)
    assert not pool.may_eject()
    assert pool.usable(NOW) == 1


def opened(**changes: object) -> Breaker:
    breaker = Breaker(settings(breaker_failures=1, **changes))
    assert breaker.failed(NOW, trial=False, may_open=True)
    return breaker


def test_after_the_pause_one_trial_at_a_time_and_two_good_close_it() -> None:
    """R14."""
    breaker = opened()
    assert not breaker.admits(NOW + 14)
    assert breaker.admits(NOW + 15)
    for closes in (False, True):
        assert breaker.began(NOW + 15)
        assert breaker.state == "half_open"
        assert not breaker.admits(NOW + 15)
        assert breaker.succeeded(trial=True) is closes
    assert (breaker.state, breaker.began(NOW)) == ("closed", False)
    assert breaker.admits(NOW)
    assert not breaker.succeeded(trial=False)


def test_a_failed_trial_opens_it_again() -> None:
    breaker = opened()
    breaker.began(NOW + 15)
    assert breaker.failed(NOW + 16, trial=True, may_open=False)
    assert not breaker.admits(NOW + 30)
    assert breaker.admits(NOW + 31)


def test_late_news_of_old_requests_changes_nothing() -> None:
    breaker = opened()
    assert not breaker.succeeded(trial=False)
    assert not breaker.succeeded(trial=True)
    assert not breaker.failed(NOW, trial=False, may_open=True)
    breaker.abandoned(trial=True)
    assert breaker.state == "open"
    breaker.began(NOW + 15)
    breaker.abandoned(trial=False)
    assert breaker.trial_running
    breaker.abandoned(trial=True)
    assert breaker.admits(NOW + 15)


def test_a_recovered_replica_starts_slowly() -> None:
    made = replica(breaker_failures=1, breaker_good_to_close=1, slow_start_s=30)
    made.note_failure(NOW, trial=False, may_open=True)
    assert made.begin(1, NOW + 15)
    assert made.exclusion(NOW + 15) == "breaker open"
    made.release(1)
    made.note_success(NOW + 16, trial=True)
    assert made.exclusion(NOW + 16) == ""
    assert made.weight(NOW + 16) < 0.2
    made.note_success(NOW + 16, trial=False)
    made.note_abandoned(trial=False)
    made.note_abandoned(trial=True)


def test_one_good_trial_of_two_keeps_a_replica_half_open() -> None:
    made = replica(breaker_failures=1, breaker_good_to_close=2)
    made.note_failure(NOW, trial=False, may_open=True)
    for state in ("half_open", "closed"):
        assert made.begin(1, NOW + 15)
        made.release(1)
        made.note_success(NOW + 15, trial=True)
        assert made.breaker.state == state


def test_new_settings_keep_the_failures() -> None:
    breaker = Breaker(settings(breaker_failures=3))
    breaker.failed(NOW, trial=False, may_open=True)
    breaker.adopt(settings(breaker_failures=2))
    breaker.adopt(settings(breaker_failures=2))
    assert breaker.failed(NOW, trial=False, may_open=True)


# -- retries ---------------------------------------------------------------------------------------


def judged(failure: str, **changes: object) -> object:
    fields = {
        "attempts": 1,
        "others": 1,
        "settings": settings(),
        "budget": RetryBudget(0.1, NOW),
        "clock_and_chance": (NOW, chance()),
    }
    return judge_retry(failure, **{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("failure", ["connect", "broken", "engine_error", "overloaded"])
def test_what_reached_no_client_is_tried_elsewhere(failure: str) -> None:
    verdict = judged(failure)
    assert verdict.retry
    assert not verdict.same_replica


@pytest.mark.parametrize("failure", ["too_slow", "lost"])
def test_what_waited_or_began_is_not(failure: str) -> None:
    """R04."""
    assert not judged(failure).retry


def test_attempts_end() -> None:
    """R15."""
    assert judged("broken", attempts=2).retry
    assert "3 attempts" in judged("broken", attempts=3).reason


def test_the_only_replica_is_tried_again_unless_it_is_busy() -> None:
    assert judged("broken", others=0).same_replica
    assert not judged("overloaded", others=0).retry


def test_an_empty_budget_ends_retries() -> None:
    budget = RetryBudget(0.1, NOW)
    granted = [judged("broken", budget=budget).retry for _ in range(40)]
    assert granted == [True] * int(BUDGET_START) + [False] * 10


def test_a_budget_grows_with_requests_and_a_little_with_time() -> None:
    budget = RetryBudget(0.1, NOW)
    while budget.spend(NOW):
        pass
    for _ in range(15):
        budget.earn()
    assert budget.spend(NOW)
    assert not budget.spend(NOW)
    assert [budget.spend(NOW + 0.2) for _ in range(3)] == [True, True, False]
    for _ in range(5000):
        budget.earn()
    assert budget.balance <= 101
    assert budget.spend(NOW + 1000)


@given(st.integers(1, 5), st.integers(0, 999))
def test_pauses_double_within_their_jitter(attempts: int, seed: int) -> None:
    pause = backoff_s(attempts, settings=settings(), chance=chance(seed))
    middle = 0.1 * 2 ** (attempts - 1)
    assert 0.8 * middle <= pause <= 1.2 * middle


# -- deadlines, queue, estimates ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "at", "limit"),
    [
        ("queued", 1030.0, "queue"),
        ("pausing", 1600.0, "end_to_end"),
        ("connecting", 1001.0, "connect"),
        ("prefill", 1030.0, "ttft"),
        ("decode", 1010.0, "stall"),
    ],
)
def test_each_phase_has_its_limit(phase: str, at: float, limit: str) -> None:
    found = next_deadline(phase, phase_began=NOW, end_at=1600.0, settings=settings())  # type: ignore[arg-type]
    assert found == (at, limit)


def test_the_end_to_end_limit_comes_first_when_it_does() -> None:
    found = next_deadline("decode", phase_began=NOW, end_at=1005.0, settings=settings())
    assert found == (1005.0, "end_to_end")


def test_plain_answers_get_time_for_their_tokens() -> None:
    """R07."""
    config = settings()
    assert first_byte_limit_s(config, generates_unseen=False, max_tokens=9) == 30.0
    assert first_byte_limit_s(config, generates_unseen=True, max_tokens=100) == 40.0
    assert first_byte_limit_s(config, generates_unseen=True, max_tokens=None) == 600.0


def test_the_line_goes_by_priority_then_arrival() -> None:
    line: WaitingLine[str] = WaitingLine()
    line.join("c", Wants(5, 0.0))
    ticket = line.join("gone", Wants(0, 1.0))
    first = line.join("a", Wants(1, 2.0))
    line.join("b", Wants(1, 3.0))
    assert len(line) == 4
    assert line.leave(ticket)
    assert not line.leave(ticket)
    assert line.next() == "a"
    line.ready("a", Wants(1, 2.0), ticket=first)
    held = line.hold("a little older")
    assert len(line) == 4
    assert line.next() == "a"
    line.ready("a", Wants(1, 2.0), ticket=first)
    line.ready("a little older", Wants(1, 1.5), ticket=held)
    assert [line.next() for _ in range(5)] == ["a little older", "a", "b", "c", None]
    assert line_limit(per_replica=8, healthy=3) == 24
    assert line_limit(per_replica=8, healthy=0) == 8


def test_a_line_tells_how_long_it_takes_by_how_fast_it_moves() -> None:
    """Half a second a place, then a stop: what is told grows with the stop."""
    pace = Pace()
    assert pace.wait_s(8, 0.0) == 2.0
    for i in range(40):
        pace.served(i * 0.5)
    assert pace.wait_s(8, 20.0) == pytest.approx(4.0, rel=0.1)
    assert pace.wait_s(8, 36.0) > 7.0
    assert pace.wait_s(1, 20.0) == 1.0
    assert pace.wait_s(10_000, 20.0) == 60.0


def test_estimates_are_modest() -> None:
    assert load.prompt_tokens(400, 4.0) == 100
    assert load.prompt_tokens(0, 4.0) == 1
    assert [load.output_tokens(n) for n in (None, 10, 100_000, -5)] == [256, 10, 1024, 0]
