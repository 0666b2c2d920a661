"""The recent store over a real Redis: sums, gaps, repeats, outages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from controlplane.telemetry import series
from controlplane.telemetry.recent import RecentStore
from controlplane.telemetry.rolling import pool_figures
from controlplane.telemetry.snapshots import NoData, Window
from routing_agent import wire
from tests.controlplane.telemetry.conftest import T0, delta, drawn, replica, report
from tests.redis_server import RedisServer

pytestmark = pytest.mark.redis


def steps_of(store: RecentStore, start: float = T0, end: float = T0 + 10):
    return store.pool_steps("chat", int(start), int(end))


def test_two_agents_reports_of_one_step_add_up(store):
    for agent in ("agt-1", "agt-2"):
        told = delta(requests={"200": 3}, ttft={40: 3}, prompt_tokens=100)
        store.book(report(agent=agent, pools=(told,)), T0)
    step = steps_of(store)[0]
    assert step.requests == {"200": 6}
    assert step.histograms["ttft"] == {40: 6}
    assert step.prompt_tokens == 200


def test_a_repeated_report_is_booked_once(store):
    told = report(7, pools=(delta(requests={"200": 3}),))
    store.book(told, T0)
    store.book(told, T0 + 1)
    assert steps_of(store)[0].requests == {"200": 3}


def test_counters_become_differences_and_an_unknown_past_counts_nothing(store):
    store.book(report(1, replicas=(replica(requests_total=1000, errors_total=7),)), T0)
    store.book(report(2, replicas=(replica(requests_total=1012, errors_total=8),)), T0 + 2)
    figures = steps_of(store)[0].replicas["rpl-1"]
    assert (figures.requests, figures.errors) == (12, 1)


def test_a_restarted_agents_smaller_counters_are_no_negative_load(store):
    store.book(report(1, replicas=(replica(requests_total=1000),)), T0)
    store.book(report(1, started_at=9.0, replicas=(replica(requests_total=4),)), T0 + 2)
    store.book(report(2, started_at=9.0, replicas=(replica(requests_total=9),)), T0 + 4)
    assert steps_of(store)[0].replicas["rpl-1"].requests == 5


def test_a_step_nobody_reported_in_is_a_gap_and_an_idle_step_is_zero(store):
    store.book(report(1, replicas=(replica(),)), T0)
    first, second = steps_of(store)
    assert first.requests == {}
    assert second is None
    window = Window(end_s=int(T0) + 10, step_s=5, steps=2, span_s=5)
    assert drawn("requests", [first, second], window).series["answered"] == [0.0, None]


def test_unknown_gauges_stay_unknown(store):
    store.book(report(1, replicas=(replica(kv_usage=None, engine_running=3),)), T0)
    figures = steps_of(store)[0].replicas["rpl-1"]
    assert figures.kv_usage is None
    assert figures.waiting is None
    assert figures.running == 3


def test_gpu_readings_are_kept_by_step(store):
    gpu = wire.Gpu(index=1, model="H100", utilization_ratio=0.5, memory_used_bytes=7 * 2**30)
    store.book(report(1, node=wire.NodeFacts(gpus=(gpu,))), T0 + 5)
    before, then = store.gpu_steps("agt-1", int(T0), int(T0) + 10)
    assert before is None
    assert then[1].utilization == 0.5
    assert then[1].memory_used_bytes == 7 * 2**30
    assert then[1].temperature_celsius is None


def test_the_newest_report_comes_back_with_its_age(store):
    store.book(report(1, epoch=4, replicas=(replica(inflight_requests=2),)), time.time() - 3)
    found, age_s = store.latest_reports()["agt-1"]
    assert found.epoch == 4
    assert found.replicas[0].inflight_requests == 2
    assert 3 <= age_s < 10


def test_every_key_expires(store):
    gpu = wire.Gpu(index=0, model="H100", utilization_ratio=0.1)
    told = report(
        1, node=wire.NodeFacts(gpus=(gpu,)), replicas=(replica(),), pools=(delta(retries=1),)
    )
    store.book(told, T0)
    lasting = [k for k in store._redis.scan_iter() if store._redis.ttl(k) < 0]
    assert sorted(lasting) == [b"sb:agents", b"sb:dirty"]  # pruned by score instead


def test_summaries_of_many_pools_come_in_one_round_trip(store):
    store.book(report(1, pools=(delta(requests={"200": 60, "502": 2}, ttft={40: 60}),)), T0)
    found = store.pool_minutes(["chat", "other"], T0 + 1, 2)
    chat, other = ([pool_figures(m) if m else None for m in found[p]] for p in ("chat", "other"))
    summary = series.summary(chat)
    assert summary.requests_per_s == pytest.approx(62 / 5)  # one step of five seconds was reported
    assert summary.failed_ratio == pytest.approx(2 / 62)
    assert series.summary(other).requests_per_s is None


def test_a_dead_redis_costs_little_and_says_so(tmp_path: Path):
    server = RedisServer(tmp_path)
    store = RecentStore(server.url, timeout_s=0.2)
    server.kill()
    store.book(report(), T0)
    answer = store.latest_reports()
    assert isinstance(answer, NoData)
    assert "Redis does not answer" in answer.reason


def test_a_frozen_redis_is_left_alone_for_a_while_then_asked_again(tmp_path: Path):
    now = [100.0]
    server = RedisServer(tmp_path)
    store = RecentStore(server.url, timeout_s=0.2, clock=lambda: now[0])
    try:
        server.freeze()
        assert isinstance(store.latest_reports(), NoData)
        server.thaw()
        assert isinstance(store.latest_reports(), NoData)  # the circuit is open
        now[0] += 3
        assert store.latest_reports() == {}
    finally:
        server.kill()


def preempted(store: RecentStore, *told: tuple[str, int | None, float | None]) -> int | None:
    """Give the preemptions booked of one replica: by agent, the engine's total and its process."""
    for i, (agent, total, process) in enumerate(told):
        seen = replica(preemptions_total=total, process_started_at=process)
        store.book(report(i + 1, agent=agent, replicas=(seen,)), T0 + 0.1 * i)
    return steps_of(store)[0].replicas["rpl-1"].preemptions


def test_an_engine_s_own_counter_told_by_two_agents_counts_once(store):
    told = [("a", 100, 1.5), ("b", 99, 1.5), ("a", 103, 1.5), ("b", 102, 1.5), ("b", 104, 1.5)]
    assert preempted(store, *told) == 4


def test_a_restarted_engine_counts_from_zero_and_older_views_count_nothing(store):
    told = [("a", 100, 1.5), ("b", 3, 9.5), ("a", 101, 1.5), ("a", 5, 9.5)]
    assert preempted(store, *told) == 5


def test_without_its_start_time_a_restart_is_seen_by_the_agent_that_told_most(store):
    told = [("a", 100, None), ("b", 98, None), ("a", 2, None), ("b", 3, None)]
    assert preempted(store, *told) == 3


def test_an_engine_that_counts_no_preemptions_has_none(store):
    assert preempted(store, ("a", None, None), ("b", None, 1.5)) is None


def test_a_pool_of_more_replicas_than_one_call_carries_is_booked_whole(store):
    many = tuple(replica(replica=f"rpl-{i}", kv_usage=0.5) for i in range(1201))
    store.book(report(1, replicas=many), T0)
    assert len(steps_of(store)[0].replicas) == 1201


def test_agents_hear_of_each_others_placements_for_a_few_seconds(store):
    def tell(agent, number, *placed, at=T0):
        store.book(report(number, agent=agent), at)
        return store.exchange(report(number, agent=agent, placed=placed, peer=peers.get(agent)), at)

    peers = {"agt-1": wire.PeerAddress(host="node-1", port=9001, key=b"k" * 32)}
    one = wire.Placed(pool="chat", replica="rpl-1", hashes=b"12345678", work_tokens=5)
    assert tell("agt-1", 1, one) == ()
    assert tell("agt-2", 4) == (
        wire.AgentPlaced(agent="agt-1", number=1, placed=(one,), peer=peers["agt-1"]),
    ), "with where that one is told directly"
    assert tell("agt-1", 2, at=T0 + 1) == (wire.AgentPlaced(agent="agt-2", number=4),)
    big = wire.Placed(pool="chat", replica="rpl-1", hashes=b"x" * 300_000)
    tell("agt-3", 1, big, at=T0 + 1)
    assert [told.agent for told in tell("agt-2", 5, at=T0 + 2)] == ["agt-1"], "too much is left out"
    assert tell("agt-2", 6, at=T0 + 60) == (), "who has gone silent is not heard of"
