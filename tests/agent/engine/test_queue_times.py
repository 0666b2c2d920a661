"""Engines' histograms of queue times: what is new of them, at its place. R49, R50."""

from __future__ import annotations

import pytest

from controlplane.domain.latency import percentile
from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.engine.prometheus import Reader
from routing_agent.engine.queue_times import NAMES, QueueTimes, cumulative, fresh
from routing_agent.metrics import Metrics

VLLM = "vllm:request_queue_time_seconds_bucket"
BOUNDS = (0.001, 0.3, 1.0, 5.0)


def page(*counts: float, name: str = VLLM, bounds: tuple[float, ...] = BOUNDS) -> str:
    """Cumulative counts by bound; the last one is +Inf."""
    labels = [*map(str, bounds), "+Inf"]
    return "".join(
        f'{name}{{engine="0",le="{bound}",model_name="m"}} {n}\n'
        for bound, n in zip(labels, counts, strict=True)
    )


def read(text: str) -> dict[float, float]:
    return cumulative(Reader(NAMES).read(text))


def p95(before: str, after: str) -> float | None:
    return percentile(fresh(read(before), read(after)), 0.95)


def test_an_old_peak_is_no_present_wait():
    """R50: 10,000 samples of 5 s are there; from now on 100 a second of 1 ms."""
    old = page(0, 0, 0, 10_000, 10_000)
    new = page(3_000, 3_000, 3_000, 13_000, 13_000)
    assert p95(old, new) == pytest.approx(0.001, rel=0.1)


def test_nothing_new_is_no_data():
    """R49."""
    assert p95(page(0, 0, 0, 0, 0), page(0, 0, 0, 0, 0)) is None
    assert p95(page(5, 5, 5, 5, 5), page(5, 5, 5, 5, 5)) is None


def test_what_only_the_last_bucket_holds_is_at_least_the_highest_bound():
    """R49: a breach."""
    assert p95(page(0, 0, 0, 0, 0), page(0, 0, 0, 0, 7)) == pytest.approx(5.0, rel=0.1)
    no_bound = page(7, bounds=())
    assert percentile(fresh({}, read(no_bound)), 0.95) == pytest.approx(wire.LATENCY_BOUNDS_S[-1])


def test_one_sample_is_a_finite_value():
    """R49."""
    assert p95(page(0, 0, 0, 0, 0), page(0, 0, 1, 1, 1)) == pytest.approx(1.0, rel=0.1)


def test_a_wide_first_bucket_is_read_at_half_of_it():
    wide = (0.3, 1.0)
    before, after = page(0, 0, 0, bounds=wide), page(9, 9, 9, bounds=wide)
    assert p95(before, after) == pytest.approx(0.15, rel=0.1)


def test_of_another_process_everything_is_new():
    assert p95(page(0, 0, 0, 100, 100), page(2, 2, 2, 2, 2)) == pytest.approx(0.001, rel=0.1)


def test_other_makes_and_several_series_count_and_created_does_not():
    text = page(1, 1, 1, 1, 1, name="sglang:queue_time_seconds_bucket")
    assert read(text)[5.0] == 1
    two = page(1, 1, 1, 1, 1) + page(2, 2, 2, 2, 2).replace('engine="0"', 'engine="1"')
    assert read(two)[0.001] == 3
    assert read(f'{VLLM}{{le="what"}} 3\n{VLLM}{{le="NaN"}} 3\nvllm:x_created 1e9\n') == {}


class TestCounting:
    def rig(self) -> tuple[QueueTimes, Fleet, Metrics]:
        fleet, metrics = Fleet(), Metrics()
        endpoints = (wire.Endpoint(replica="r1", url="http://127.0.0.1:1"),)
        pool = wire.Pool(name="p", model="m", version="v1", overload="queue", endpoints=endpoints)
        fleet.apply(
            wire.RoutingTable(lineage="l", epoch=1, fleet_revision=1, pools=(pool,)),
            now=0.0, wall=0.0,
        )  # fmt: skip
        return QueueTimes(fleet, metrics), fleet, metrics

    def test_the_first_page_is_a_base_and_the_next_counts_in_the_report(self):
        times, fleet, metrics = self.rig()
        endpoint = fleet.replicas["r1"].endpoint
        times.note_page(endpoint, page(0, 0, 0, 50, 50))
        assert metrics.take_deltas()[0] == ()
        times.note_page(endpoint, page(0, 4, 4, 54, 54))
        (delta,) = metrics.take_deltas()[0]
        assert (delta.pool, delta.version) == ("p", "v1")
        assert sum(delta.engine_queue_wait.values()) == 4
        metrics.give_back((delta,), ())
        assert metrics.take_deltas()[0][0].engine_queue_wait == delta.engine_queue_wait

    def test_a_page_without_the_histogram_or_of_a_replica_that_is_gone_counts_nothing(self):
        times, fleet, metrics = self.rig()
        endpoint = fleet.replicas["r1"].endpoint
        times.note_page(endpoint, "vllm:num_requests_running 1\n")
        gone = wire.Endpoint(replica="gone", url="http://127.0.0.1:2")
        for text in (page(0, 0, 0, 0, 0), page(1, 1, 1, 1, 1)):
            times.note_page(gone, text)
        for n in range(5):  # ever new addresses: what is remembered stays bounded
            times.note_page(
                wire.Endpoint(replica=f"x{n}", url="http://127.0.0.1:3"), page(0, 0, 0, 0, 0)
            )
        assert len(times._last) <= 3
        assert metrics.take_deltas()[0] == ()
