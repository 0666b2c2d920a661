"""Series and summaries from steps: percentiles of the present, gaps, outcomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry import series
from controlplane.telemetry.live import ReplicaNow, kv_usage_max, replicas
from controlplane.telemetry.rolling import reading
from controlplane.telemetry.snapshots import (
    WINDOWS,
    GpuStep,
    NoData,
    PoolStep,
    ReplicaStep,
    Window,
    window,
)
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket
from tests.controlplane.telemetry.conftest import drawn as drawn_over
from tests.controlplane.telemetry.conftest import drawn_of, replica, report

WINDOW = Window(end_s=100, step_s=5, steps=2, span_s=10)


def step(**given) -> PoolStep:
    return PoolStep(**given)


def drawn(name, steps, window=WINDOW):
    return drawn_over(name, steps, window)


def test_a_percentile_is_read_from_buckets_summed_over_the_span():
    slow, fast = latency_bucket(5.0), latency_bucket(0.001)
    steps = [step(histograms={"ttft": {slow: 1}}), step(histograms={"ttft": {fast: 99}})]
    found = drawn("ttft", [None, *steps])
    assert found.series["p50"][-1] == pytest.approx(0.001, rel=0.06)
    assert found.series["p99"][-1] == pytest.approx(0.001, rel=0.06)


def test_no_samples_is_neither_zero_nor_an_error():
    found = drawn("ttft", [step(), step()])
    assert list(found.series["p95"]) == [None, None]
    assert found.is_empty


def test_only_the_overflow_bucket_gives_at_least_the_last_bound():
    steps = [step(histograms={"queue_wait": {len(LATENCY_BOUNDS_S): 3}})] * 2
    assert drawn("queue-wait", steps).series["p95"][-1] >= LATENCY_BOUNDS_S[-1]


def test_old_peaks_are_gone_once_they_left_the_span():
    past = step(histograms={"ttft": {latency_bucket(5.0): 10_000}})
    now = step(histograms={"ttft": {latency_bucket(0.001): 500}})
    assert drawn("ttft", [past, now, now, now]).series["p95"][-1] < 0.0012


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("200", "answered"),
        ("404", "client error"),
        ("429", "limited"),
        ("499", "client left"),
        ("503", "failed"),
    ],
)
def test_statuses_are_sorted_into_what_an_operator_asks_about(status, word):
    assert series.outcome(status) == word


def test_outcomes_that_never_occur_are_left_out_but_failures_always_show():
    found = drawn("requests", [step(requests={"200": 10})] * 2)
    assert list(found.series) == ["answered", "failed"]
    assert found.series["answered"][-1] == 2.0


def test_kv_usage_of_a_pool_is_maximum_and_mean_never_a_sum():
    both = {"a": ReplicaStep(kv_usage=0.9), "b": ReplicaStep(kv_usage=0.5)}
    found = drawn("kv", [step(replicas=both)] * 2)
    assert found.series["max"][-1] == 0.9
    assert found.series["mean"][-1] == pytest.approx(0.7)


def test_a_replica_nobody_reports_is_a_gap():
    steps = [step(replicas={"a": ReplicaStep(requests=5)}), None, step(replicas={})]
    narrow = Window(end_s=100, step_s=5, steps=3, span_s=5)
    assert drawn_of("a", "failures", steps, narrow).series["requests"] == [1.0, None, None]


def test_engines_that_tell_nothing_of_themselves_leave_gaps_not_zeros():
    steps = [step(replicas={"a": ReplicaStep(requests=5)})] * 2
    for name in ("kv", "load", "preemptions", "gpu", "hit-rate"):
        assert drawn(name, steps).is_empty, name


def test_a_rate_is_over_the_seconds_that_were_reported():
    begun = step(requests={"200": 30}, reported={0: 10, 5: 20})  # ten seconds of a minute
    window = Window(end_s=120, step_s=60, steps=2, span_s=60, base_s=60)
    found = drawn("requests", [None, begun], window)
    assert found.series["answered"] == [None, 3.0]


def test_of_many_lines_the_highest_stay_and_the_rest_become_one():
    gpus = {i: [reading(GpuStep(utilization=i / 10))] * 2 for i in range(8)}
    found = series.gpu_lines(gpus, "utilization", WINDOW)
    assert list(found.series) == ["GPU 3", "GPU 4", "GPU 5", "GPU 6", "GPU 7", "mean of 3 others"]
    assert found.series["mean of 3 others"][-1] == pytest.approx(0.1)
    assert "5 highest of 8" in found.note


def test_gpus_spread_over_nodes_become_maximum_and_mean():
    low, high = reading(GpuStep(utilization=0.2)), reading(GpuStep(utilization=0.8))
    found = series.chart("gpu", series.merged([[low, None], [high, None]]), WINDOW)
    assert found.series["max"] == [0.8, None]
    assert found.series["mean"] == [0.5, None]


@given(st.sampled_from([*WINDOWS, "nonsense"]), st.floats(0, 4e9))
def test_a_window_ends_on_a_step_and_holds_at_most_300_points(name, now):
    found = window(name, now)
    assert found.end_s % found.step_s == 0
    assert 0 <= now - found.end_s < found.step_s
    assert len(found.times) == found.steps <= 300


def test_a_replica_is_summed_over_fresh_reports_only():
    reports = {
        "a": (
            report(replicas=(replica(inflight_requests=2, kv_usage=0.5, scrape_age_s=1.0),)),
            1.0,
        ),
        "b": (
            report(replicas=(replica(inflight_requests=3, kv_usage=0.6, scrape_age_s=0.2),)),
            2.0,
        ),
        "old": (report(replicas=(replica(inflight_requests=50, kv_usage=0.1),)), 300.0),
    }
    found = replicas(reports)["rpl-1"]
    assert found.inflight_requests == 5
    assert found.kv_usage == 0.6  # the fresher scrape
    assert found.agents == 2


def test_a_replica_only_seen_long_ago_is_known_as_old():
    found = replicas({"old": (report(replicas=(replica(kv_usage=0.9),)), 300.0)})["rpl-1"]
    assert not found.is_fresh
    assert kv_usage_max([found]) is None


def test_without_a_store_there_are_no_figures():
    assert replicas(NoData("gone")) == {}
    assert kv_usage_max([None, ReplicaNow()]) is None
