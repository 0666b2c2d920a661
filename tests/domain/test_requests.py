"""Stages on a line beside their budgets, and times of clocks that are off."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.requests import LEAST_UNITS, LINE_UNITS, moment, stage_lines
from routing_agent import wire

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
STAGES = ("RECEIVED", "QUEUED", "BOUND", "PREFILL", "DECODE")


def record(*stages: tuple[str, float], **given_fields) -> wire.RequestRecord:
    """A life of these stages."""
    told = tuple(wire.StageRecord(stage=name, at=1.0, duration_s=s) for name, s in stages)
    fields = {"e2e_s": sum(s for _, s in stages), "output_tokens": 11} | given_fields
    return wire.RequestRecord(uid="u", request_id="r", received_at=1.0, stages=told, **fields)


def test_stages_lie_end_to_end_on_the_bar():
    lines = stage_lines(record(("QUEUED", 0.25), ("PREFILL", 0.25), ("DECODE", 0.5), ("DONE", 0.0)))
    assert [(line.x, line.width) for line in lines[:3]] == [(0, 250), (250, 250), (500, 500)]
    assert [line.began_s for line in lines] == [0.0, 0.25, 0.5, 1.0]


def test_a_reason_that_is_a_code_is_told_in_words():
    said = ("no_replica", "bound to rpl_1: least cost", "")
    stages = tuple(
        wire.StageRecord(stage="QUEUED", at=1.0, duration_s=0.1, reason=reason) for reason in said
    )
    lines = stage_lines(wire.RequestRecord(uid="u", request_id="r", received_at=1.0, stages=stages))
    assert [line.reason for line in lines] == ["no replica", *said[1:]]


@pytest.mark.parametrize(
    ("stages", "budgets"),
    [
        ((("RECEIVED", 0.0), ("QUEUED", 0.1)), [0.08, 0.08]),
        ((("BOUND", 0.001), ("PREFILL", 0.1), ("DECODE", 0.3)), [0.005, 0.14, 0.25]),
        ((("PREFILL", 0.1), ("DONE", 0.0)), [0.39, None]),  # the answer came in one piece
    ],
)
def test_each_stage_has_its_budget(stages, budgets):
    assert [line.budget_s for line in stage_lines(record(*stages))] == [
        None if b is None else pytest.approx(b) for b in budgets
    ]


def test_what_took_longer_than_its_budget_is_over():
    lines = stage_lines(record(("QUEUED", 0.1), ("PREFILL", 0.1), ("DECODE", 0.1), ("DONE", 0.0)))
    assert [line.is_over for line in lines] == [True, False, False, False]


@given(
    st.lists(st.tuples(st.sampled_from(STAGES), st.floats(0, 1e6)), max_size=20),
    st.floats(0, 1e6),
)
def test_nothing_ever_leaves_the_bar(stages, e2e_s):
    for line in stage_lines(record(*stages, e2e_s=e2e_s)):
        assert 0 <= line.x <= LINE_UNITS - LEAST_UNITS
        assert LEAST_UNITS <= line.width <= LINE_UNITS - line.x


def test_a_life_without_stages_has_no_lines():
    assert stage_lines(record()) == []


@pytest.mark.parametrize("at", [0.0, 1e18, -1e300, float("inf"), float("nan")])
def test_a_clock_far_off_counts_as_now(at):
    assert moment(at, now=NOW) == NOW


def test_a_time_of_this_week_is_taken():
    assert moment(NOW.timestamp() - 3600, now=NOW).hour == 11
