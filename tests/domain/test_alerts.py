"""When alerts begin, fire and end; that they do not flap, and that missing data decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import alerts
from controlplane.domain.alert_rules import BY_NAME, RULES, outranked
from controlplane.domain.alerts import Reading, State, is_stale, judge

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
HIGH = BY_NAME["ttft-high"]  # over 2 s, clears at 1.8, for 60 s, clear for 60 s
LOW = BY_NAME["throughput-down"]  # under 0.7, clears at 0.8, for 300 s


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def reading(value: float | None, **given) -> Reading:
    return Reading(subject="chat", pool="chat", value=value, **given)


def played(rule, values, step_s=10.0, known=None):
    """Give what becomes of an alert when these values are seen one after the other."""
    states = []
    for i, value in enumerate(values):
        if known is not None and known.state is State.RESOLVED:
            known = None
        known = judge(rule, reading(value, missing="frozen"), known, now=at(i * step_s))
        states.append(known and known.state)
    return known, states


def test_a_value_within_its_limit_is_no_alert():
    assert played(HIGH, [1.0, 2.0]) == (None, [None, None])


def test_it_fires_after_its_duration_and_says_why_with_figures_and_age():
    seen = reading(8.9, text="TTFT P99 of 40 requests in 75 s.", age_s=12)
    known = judge(HIGH, seen, None, now=at(0))
    assert known.state is State.PENDING
    known = judge(HIGH, seen, known, now=at(59))
    assert known.state is State.PENDING
    known = judge(HIGH, seen, known, now=at(60))
    assert known.state is State.FIRING
    assert (known.since, known.fired_at) == (at(0), at(60))
    assert known.reason == (
        "8.90 s, over the limit of 2 s. TTFT P99 of 40 requests in 75 s. The figures are 12 s old."
    )


def test_a_rule_without_duration_fires_at_once():
    known = judge(BY_NAME["burn-fast"], reading(15.0), None, now=at(0))
    assert known.state is State.FIRING


def test_a_short_peak_never_fires():
    _, states = played(HIGH, [9, 9, 9, 1, 9, 9, 9, 1])
    assert State.FIRING not in states


def test_it_ends_only_after_it_was_clear_for_its_time():
    firing, _ = played(HIGH, [9] * 7)
    _, states = played(HIGH, [1] * 8, known=firing)
    assert states == [State.FIRING] * 6 + [State.RESOLVED, None]


def test_a_value_between_the_limits_neither_begins_nor_ends_anything():
    assert played(HIGH, [1.9] * 20)[0] is None
    firing, _ = played(HIGH, [9] * 7)
    after, states = played(HIGH, [1.9] * 60, known=firing)
    assert set(states) == {State.FIRING}
    assert after.clear_since is None


def test_a_value_around_its_limit_does_not_flap():
    firing, _ = played(HIGH, [9] * 7)
    _, states = played(HIGH, [2.1, 1.7] * 50, known=firing)
    assert set(states) == {State.FIRING}


def test_no_data_fires_nothing_and_ends_nothing():
    assert played(HIGH, [None] * 50)[0] is None
    firing, _ = played(HIGH, [9] * 7)
    after, states = played(HIGH, [None] * 500, known=firing)
    assert set(states) == {State.FIRING}
    assert after.no_data_since == at(0)
    assert "No data since: frozen" in after.reason


def test_what_is_no_number_is_no_data_and_what_is_endless_is_over_any_limit():
    assert judge(HIGH, reading(float("nan")), None, now=at(0)) is None
    firing, _ = played(HIGH, [9] * 7)
    assert judge(HIGH, reading(float("nan")), firing, now=at(80)).no_data_since == at(80)
    assert judge(HIGH, reading(float("inf")), None, now=at(0)).state is State.PENDING


def test_time_without_data_counts_for_no_duration():
    pending = judge(HIGH, reading(9), None, now=at(0))
    pending = judge(HIGH, reading(None), pending, now=at(10))
    assert "No data" not in pending.reason
    back = judge(HIGH, reading(9), pending, now=at(300))
    assert (back.state, back.since, back.no_data_since) == (State.PENDING, at(290), None)
    assert judge(HIGH, reading(9), back, now=at(350)).state is State.FIRING


def test_of_a_pool_that_is_heard_of_and_idle_it_ends_after_a_while_and_else_it_is_stale():
    firing, _ = played(HIGH, [9] * 7)
    idle = replace(reading(None), is_idle=True)
    held = judge(HIGH, idle, firing, now=at(100))
    assert (held.state, is_stale(held.no_data_since, now=at(999))) == (State.FIRING, False)
    assert judge(HIGH, idle, held, now=at(999)).state is State.FIRING
    over = judge(HIGH, idle, held, now=at(1000))
    assert (over.state, over.resolved_at) == (State.RESOLVED, at(1000))
    assert "Ended: next to no requests for 15 min." in over.reason
    blind = judge(HIGH, reading(None), held, now=at(5000))
    assert blind.state is State.FIRING
    assert is_stale(blind.no_data_since, now=at(1000))
    assert not is_stale(None, now=at(1000))


def test_no_data_while_clearing_begins_the_wait_anew():
    firing, _ = played(HIGH, [9] * 7)
    clearing = judge(HIGH, reading(1), firing, now=at(100))
    assert clearing.clear_since == at(100)
    blind = judge(HIGH, reading(None), clearing, now=at(110))
    assert blind.clear_since is None
    assert judge(HIGH, reading(1), blind, now=at(170)).state is State.FIRING


def test_a_rule_can_fire_below_its_limit():
    firing, _ = played(LOW, [0.5] * 31)
    assert firing.state is State.FIRING
    assert "50 %, below the limit of 70 %" in firing.reason
    assert played(LOW, [0.75] * 40, known=firing)[0].state is State.FIRING
    assert State.RESOLVED in played(LOW, [0.85] * 8, known=firing)[1]


def test_a_promise_of_the_pool_is_its_limit():
    rule = BY_NAME["ttft-over-slo"]
    assert judge(rule, reading(0.31, threshold=0.3), None, now=at(0)).threshold == 0.3
    assert judge(rule, reading(0.31, threshold=0.5), None, now=at(0)) is None
    assert judge(rule, reading(0.31), None, now=at(0)) is None  # no promise, no alert
    firing = judge(rule, reading(1.0, threshold=0.3), None, now=at(0))
    firing = judge(rule, reading(1.0, threshold=0.3), firing, now=at(120))
    still = judge(rule, reading(0.28, threshold=0.3), firing, now=at(130))
    assert still.clear_since is None  # within a tenth of it
    assert judge(rule, reading(0.26, threshold=0.3), firing, now=at(130)).clear_since == at(130)


@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), max_size=40), st.sampled_from(RULES))
@settings(max_examples=50, deadline=None)
def test_whatever_is_seen_an_alert_has_passed_its_limit_and_times_are_in_order(values, rule):
    known = None
    for i, value in enumerate(values):
        known = judge(rule, reading(value, threshold=1.0), known, now=at(i * 10))
        if known is not None and known.state is State.RESOLVED:
            known = None
        if known is not None and known.state is State.FIRING:
            assert known.fired_at >= known.since
            assert known.fired_at - known.since >= timedelta(seconds=rule.for_s)


def test_rules_are_sound():
    assert len(BY_NAME) == len(RULES)
    for rule in RULES:
        assert rule.remedy, rule.name
        assert len(rule.name) <= 40
        if rule.threshold is not None:
            assert rule.clear is not None
            gap = rule.clear - rule.threshold
            assert gap >= 0 if rule.is_under else gap <= 0


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.287, "s", "287 ms"), (1.24, "s", "1.24 s"), (10.0, "s", "10 s"),
        (0.31, "ratio", "31 %"), (0.0534, "ratio", "5.34 %"), (0.00001, "ratio", "< 0.01 %"),
        (0, "ratio", "0 %"), (1.2345, "ratio", "123 %"),
        (14.4, "x", "14.4x"), (101, "requests", "101 requests"), (1, "replicas", "1 replica"),
    ],
)  # fmt: skip
def test_amounts_have_their_unit(value, unit, said):
    assert alerts.amount(value, unit) == said


@dataclass
class Quiet:
    rule: str = ""
    pool: str = ""
    starts_at: datetime = T0
    ends_at: datetime = T0 + timedelta(hours=1)


@dataclass
class Noise:
    rule: str = "ttft-high"
    pool: str = "chat"


@pytest.mark.parametrize(
    ("silence", "now", "covers"),
    [
        (Quiet(rule="ttft-high"), 0, True),
        (Quiet(pool="chat"), 0, True),
        (Quiet(rule="ttft-high", pool="chat"), 0, True),
        (Quiet(rule="kv-high"), 0, False),
        (Quiet(rule="ttft-high", pool="other"), 0, False),
        (Quiet(pool="chat"), 3600, False),
        (Quiet(pool="chat"), -1, False),
    ],
)
def test_a_silence_covers_what_it_names_while_it_lasts(silence, now, covers):
    found = alerts.silence_of(Noise(), [silence], now=at(now))
    assert (found is silence) == covers


def test_messages_are_tried_again_with_a_growing_pause_and_given_up_at_last():
    pauses = [alerts.next_try_s(n) for n in range(1, alerts.ATTEMPTS_AT_MOST)]
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses == sorted(pauses)
    assert max(pauses) <= 3600
    assert alerts.next_try_s(alerts.ATTEMPTS_AT_MOST) is None


def test_an_alert_that_goes_on_keeps_its_newest_figures():
    firing, _ = played(HIGH, [9] * 7)
    worse = judge(HIGH, reading(12), replace(firing, clear_since=at(60)), now=at(80))
    assert (worse.value, worse.clear_since) == (12, None)


def test_no_two_alerts_of_a_pool_ask_for_opposite_things():
    low, slow, fast = BY_NAME["gpu-low"], BY_NAME["ttft-high"], BY_NAME["tpot-over-slo"]
    assert outranked(low, [low, fast, slow]) is slow  # TTFT before generation speed before cost
    assert outranked(low, [low]) is None
    assert outranked(slow, [low, slow]) is None
    assert outranked(BY_NAME["errors-high"], [low]) is None  # it asks for no number of replicas
    for rule in RULES:
        held = [r for r in RULES if outranked(r, [rule]) is rule]
        assert outranked(rule, held) is None
