"""Series and summaries from steps: percentiles of the present, gaps, outcomes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.telemetry import series
from controlplane.telemetry.live import ReplicaNow, kv_usage_max, replicas
from controlplane.telemetry.snapshots import GpuStep, NoData, PoolStep, ReplicaStep, Window, window
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket
from tests.controlplane.telemetry.conftest import replica, report

WINDOW = Window(end_s=100, step_s=5, steps=2, span_s=10)
EMPTY: dict[str, dict[int, int]] = {"ttft": {}, "tpot": {}, "e2e": {}, "queue_wait": {}}


def step(**given) -> PoolStep:
    return PoolStep(histograms=EMPTY | given.pop("histograms", {}), **given)


def test_a_percentile_is_read_from_buckets_summed_over_the_span():
    slow, fast = latency_bucket(5.0), latency_bucket(0.001)
    steps = [step(histograms={"ttft": {slow: 1}}), step(histograms={"ttft": {fast: 99}})]
    found = series.latency_series([None, *steps], WINDOW, "ttft")
    assert found.series["p50"][-1] == pytest.approx(0.001, rel=0.06)
    assert found.series["p99"][-1] == pytest.approx(0.001, rel=0.06)


def test_no_samples_is_neither_zero_nor_an_error():
    found = series.latency_series([step(), step()], WINDOW, "ttft")
    assert list(found.series["p95"]) == [None, None]
    assert found.is_empty


def test_only_the_overflow_bucket_gives_at_least_the_last_bound():
    steps = [step(histograms={"queue_wait": {len(LATENCY_BOUNDS_S): 3}})] * 2
    found = series.latency_series(steps, WINDOW, "queue_wait")
    assert found.series["p95"][-1] >= LATENCY_BOUNDS_S[-1]


def test_old_peaks_are_gone_once_they_left_the_span():
    past = step(histograms={"ttft": {latency_bucket(5.0): 10_000}})
    now = step(histograms={"ttft": {latency_bucket(0.001): 500}})
    found = series.latency_series([past, now, now, now], WINDOW, "ttft")
    assert found.series["p95"][-1] < 0.0012


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
    found = series.request_series([step(requests={"200": 10})] * 2, WINDOW)
    assert list(found.series) == ["answered", "failed"]
    assert found.series["answered"][-1] == 2.0


def test_kv_usage_of_a_pool_is_maximum_and_mean_never_a_sum():
    both = {"a": ReplicaStep(kv_usage=0.9), "b": ReplicaStep(kv_usage=0.5)}
    found = series.kv_series([step(replicas=both)] * 2, WINDOW)
    assert found.series["max"][-1] == 0.9
    assert found.series["mean"][-1] == pytest.approx(0.7)


def test_a_replica_nobody_reports_is_a_gap():
    steps = [step(replicas={"a": ReplicaStep(requests=5)}), None]
    narrow = Window(end_s=100, step_s=5, steps=2, span_s=5)
    assert series.replica_rates(steps, narrow, "a").series["requests"] == [1.0, None]


def test_gpus_spread_over_nodes_become_maximum_and_mean():
    steps = [{0: GpuStep(utilization=0.2), 1: GpuStep(utilization=0.8)}] * 2
    node = series.gpu_series(steps, WINDOW, "utilization")
    found = series.gpu_spread([node, node], [[0], [1]])
    assert found.series["max"][-1] == 0.8
    assert found.series["mean"][-1] == 0.5


@given(st.sampled_from(["5m", "15m", "1h", "nonsense"]), st.floats(0, 4e9))
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
