"""What a pool did in a stretch: fine figures first, roll-ups later, and when that is no data."""

from __future__ import annotations

import pytest

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.rollouts.measuring import Measured, measure, measure_between
from controlplane.telemetry import history
from controlplane.telemetry.models import RollUp, Step
from controlplane.telemetry.snapshots import NoData

pytestmark = pytest.mark.django_db
NOW = 1_800_000_000.0  # a whole minute


def rolled(*minutes_ago: int, requests: int = 10) -> None:
    for ago in minutes_ago:
        figures = Figures(covered_s=60, requests=requests, ttft={20: requests})
        RollUp.objects.create(
            level="pool",
            subject="chat-a",
            step_s=Step.MINUTE,
            at=history.moment(NOW - 60 * ago),
            covered_s=60,
            requests=requests,
            figures=rollups.packed(figures),
        )


def test_of_a_long_step_the_rollups_are_added_up():
    rolled(*range(2, 90))
    found = measure("chat-a", NOW - 5400, NOW)
    assert isinstance(found, Measured)
    assert (found.figures.requests, found.figures.ttft) == (880, {20: 880})
    assert "roll-up" in found.source


def test_rollups_that_are_late_are_no_data():
    rolled(*range(30, 90))
    found = measure("chat-a", NOW - 5400, NOW)
    assert isinstance(found, NoData)
    assert "no fresh roll-ups of pool 'chat-a'" in found.reason


def test_a_stretch_that_is_long_over_is_read_from_rollups():
    rolled(100, 101, 102)
    found = measure_between("chat-a", NOW - 102 * 60, NOW - 99 * 60, NOW)
    assert isinstance(found, Measured)
    assert found.figures.requests == 30
    for since, until in ((200, 190), (100.9, 100.2)):
        missing = measure_between("chat-a", NOW - since * 60, NOW - until * 60, NOW)
        assert isinstance(missing, NoData)


def test_a_dead_redis_is_said():
    found = measure("chat-a", NOW - 60, NOW)
    assert isinstance(found, NoData)
    assert "Redis does not answer" in found.reason


def test_a_recent_store_that_was_emptied_takes_no_baseline_away(figures):
    rolled(7, 8, 9)
    found = measure_between("chat-a", NOW - 600, NOW - 360, NOW)
    assert isinstance(found, Measured)
    assert found.figures.requests == 30
    assert "roll-up" in found.source
