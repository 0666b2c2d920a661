"""bin/bench telemetry: what it makes up is what the product would keep, and retention takes it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from bench import telemetry, telemetry_data
from controlplane.telemetry import history, services
from controlplane.telemetry.rolling import roll
from controlplane.telemetry.snapshots import window

FLEET = telemetry_data.Fleet(replicas=10, pools=3, tenants=2)
END = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.django_db
def test_a_made_up_month_is_read_as_a_real_one() -> None:
    made = [roll(telemetry_data.minute(FLEET, random.Random(1)), FLEET.topology())]
    assert len(list(telemetry_data.fill(made, END, days=2))) == 49
    for level, subject in (
        *(("fleet", ""), ("pool", "pool-01"), ("version", "model-1:v1")),
        *(("node", "node-0"), ("tenant", "tenant-001")),
    ):
        frames = history.frames(level, subject, window("24h", END.timestamp()))
        assert all(f is not None and f.requests for f in frames), level
    gpus = history.gpu_frames("agt-1", [1], window("7d", END.timestamp()))
    assert [f is not None for f in gpus[1]] == [False] * 120 + [True] * 48
    services.forget(minutes_before=END - timedelta(hours=1), hours_before=END - timedelta(hours=24))
    left = telemetry_data.counts()
    assert left["RollUp minutes"] == 60 * len(made[0].rows)
    assert left["RollUp hours"] == 24 * len(made[0].rows)


def test_figures_are_shown_as_tables() -> None:
    text = telemetry.as_text({"database": "sqlite", "pages_ms": {"/fleet/": "90 (70 CPU)"}})
    assert "Roll-ups in sqlite" in text
    assert "90 (70 CPU)" in text
