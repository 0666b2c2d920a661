"""Roll-ups: the recent store's minutes in the database, each once, however often and late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry import history, recent, rolling, services, source, topology
from controlplane.telemetry.models import MemberRollUp, RollUp, RollUpState, Step
from controlplane.telemetry.snapshots import NoData, Window, window
from controlplane.telemetry.topology import Topology
from routing_agent import wire
from tests.controlplane.routing.conftest import at_once
from tests.controlplane.telemetry.conftest import T0, delta, replica, report

HOUR0 = T0 // 3600 * 3600  # the hour that holds T0
GPU = wire.Gpu(index=1, model="H100", utilization_ratio=0.5, memory_used_bytes=7 * 2**30)
SHAPE = Topology(
    models={"chat": "m"},
    versions={"chat": "v1"},
    nodes={"rpl-1": "node-1"},
    agents={"agt-1": "node-1"},
    held={"chat": {"agt-1": (1,)}},
)


@pytest.fixture
def told(store, monkeypatch, db) -> Iterator[recent.RecentStore]:
    """A recent store that roll-ups read, in a fleet of one pool, one replica and one node."""
    monkeypatch.setattr(recent, "store", lambda: store)
    monkeypatch.setattr(topology, "_sources", [lambda: SHAPE])
    source._points.clear()
    yield store
    source._points.clear()


def book(store, number: int, at: float, **given: Any) -> None:
    """Have agent `agt-1` tell of ten requests, its replica and its GPU."""
    defaults: dict[str, Any] = {
        "pools": (delta(requests={"200": 9, "503": 1}, ttft={40: 9}, prompt_tokens=100),),
        "replicas": (replica(requests_total=10 * number, engine_running=4, kv_usage=0.5),),
        "tenants": (wire.TenantDelta(tenant="acme", requests={"200": 9}, output_tokens=50),),
        "node": wire.NodeFacts(gpus=(GPU,)),
    }
    store.book(report(number, **(defaults | given)), at)


def kept(level: str, subject: str = "", step: Step = Step.MINUTE) -> list[Figures]:
    rows = RollUp.objects.filter(level=level, subject=subject, step_s=step).order_by("at")
    return [rollups.unpacked(bytes(row.figures)) for row in rows]


def everything() -> list[Any]:
    """All that is kept; the order inside a row's figures tells nothing."""
    rows = RollUp.objects.values_list("pk", "requests", "failed", "covered_s", "figures")
    members = MemberRollUp.objects.values_list("pk", "kind", "shard", "at", "members")
    return [
        *[(*row, rollups.unpacked(bytes(body))) for *row, body in rows],
        *[(*row, rollups.unpacked_members(bytes(body))) for *row, body in members],
    ]


@pytest.mark.redis
def test_a_minute_that_is_over_is_kept_at_every_level(told):
    book(told, 1, T0 + 1)
    book(told, 2, T0 + 6)
    assert services.roll_up(T0 + 65) == "0 of 0 minutes and 0 hours rolled up"  # still in grace
    assert services.roll_up(T0 + 71) == "1 of 1 minute and 0 hours rolled up"
    for level, subject in (("fleet", ""), ("pool", "chat"), ("version", "m:v1")):
        (found,) = kept(level, subject)
        assert found.statuses == {"200": 18, "503": 2}
        assert (found.requests, found.failed, found.covered_s) == (20, 2, 10)
        assert found.ttft == {40: 18}
        assert found.kv_max == 0.5
        assert rollups.running(found) == 4
        assert rollups.utilization_mean(found) == 0.5
        assert found.peak_rate == 2.0
    (tenant,) = kept("tenant", "acme")
    assert (tenant.requests, tenant.output_tokens) == (18, 100)
    (node,) = kept("node", "node-1")
    assert (node.requests, node.utilization_max) == (10, 0.5)
    (pool,) = RollUp.objects.filter(level="pool")
    assert (pool.version, pool.requests, pool.failed) == ("v1", 20, 2)
    minute = Window(end_s=int(T0) + 60, step_s=60, steps=1, span_s=60, base_s=60)
    assert history.replica_frames("rpl-1", minute)[0].requests == 10
    assert rollups.memory_mean(history.gpu_frames("agt-1", [1], minute)[1][0]) == 7 * 2**30


@pytest.mark.redis
def test_a_minute_knows_the_means_of_gauges_and_the_highest_kv_usage(told):
    for i, (running, kv) in enumerate([(1, 0.1), (5, 0.9), (3, 0.2), (None, None)]):
        told.book(
            report(i + 1, replicas=(replica(engine_running=running, kv_usage=kv),)), T0 + 2 * i
        )
    services.roll_up(T0 + 71)
    (pool,) = kept("pool", "chat")
    assert rollups.running(pool) == 3
    assert rollups.waiting(pool) == 0  # some engine tells its load, and none waited
    assert (rollups.kv_mean(pool), pool.kv_max) == (pytest.approx(0.4), 0.9)


@pytest.mark.redis
def test_rolling_up_again_changes_nothing(told):
    book(told, 1, T0 + 1)
    services.roll_up(T0 + 71)
    before = everything()
    told._redis.zadd("sb:dirty", {str(int(T0)): T0})
    services.roll_up(T0 + 72)
    assert everything() == before
    assert services.roll_up(T0 + 73).startswith("0 of 0 minutes")


@pytest.mark.redis
def test_what_comes_late_is_added_and_changes_its_hour(told):
    book(told, 1, HOUR0 + 1)
    services.roll_up(HOUR0 + 3700)
    assert kept("fleet", step=Step.HOUR)[0].requests == 10
    late = report(2, covers_s=3600.0, pools=(delta(requests={"200": 7200}),))
    told.book(late, HOUR0 + 3610)
    services.roll_up(HOUR0 + 3700)
    (hour,) = kept("fleet", step=Step.HOUR)
    assert hour.requests == pytest.approx(7210, abs=60)
    assert hour.covered_s == pytest.approx(3600, abs=60)


@pytest.mark.redis
def test_after_an_outage_of_the_worker_every_minute_is_made_up_for(told):
    for minute in range(40):
        book(told, minute + 1, T0 + 60 * minute)
    assert services.roll_up(T0 + 60 * 40 + 10).startswith("40 of 40 minutes")
    assert sum(f.requests for f in kept("fleet")) == 400


@pytest.mark.redis
def test_an_emptied_redis_takes_nothing_back(told):
    book(told, 1, T0 + 1)
    services.roll_up(T0 + 71)
    told._redis.flushall()
    book(told, 2, T0 + 40)  # late, and of the same minute
    services.roll_up(T0 + 71)
    assert kept("fleet")[0].requests == 10


@pytest.mark.redis
def test_a_report_between_reading_and_crossing_off_is_not_lost(told):
    book(told, 1, T0 + 1)
    (changed_at,) = told.dirty_minutes().values()
    book(told, 2, T0 + 2)
    told.clean(int(T0), changed_at)
    assert list(told.dirty_minutes()) == [int(T0)]


@pytest.mark.redis
def test_a_pool_that_changes_its_version_in_a_minute_is_split(told):
    both = (delta(requests={"200": 4}), delta(version="v2", requests={"200": 6}))
    book(told, 1, T0 + 1, pools=both)
    services.roll_up(T0 + 71)
    rows = {row.version: row for row in RollUp.objects.filter(level="pool")}
    assert {v: row.requests for v, row in rows.items()} == {"v1": 4, "v2": 6}
    readings = {v: rollups.unpacked(bytes(row.figures)).kv_max for v, row in rows.items()}
    assert readings == {"v1": 0.5, "v2": None}  # the pool serves v1: engines speak for it
    assert kept("version", "m:v2")[0].requests == 6
    assert kept("fleet")[0].requests == 10


@pytest.mark.redis
def test_without_redis_a_run_says_so_and_the_next_goes_on(told, tmp_path, monkeypatch):
    gone = recent.RecentStore("redis://127.0.0.1:1/0", timeout_s=0.1)
    book(told, 1, T0 + 1)
    with monkeypatch.context() as away:
        away.setattr(recent, "store", lambda: gone)
        assert "Redis does not answer" in services.roll_up(T0 + 71)
    assert services.roll_up(T0 + 72).startswith("1 of 1")


@pytest.mark.redis
def test_an_emptied_recent_store_leaves_no_gap_in_the_hour(told):
    book(told, 1, T0 + 1)
    services.roll_up(T0 + 71)
    told._redis.flushall()
    book(told, 2, T0 + 61)
    found = source.pool_chart("chat", "requests", window("1h", T0 + 120))
    assert found.series["answered"][-2:] == [1.8, 1.8]
    assert found.series["answered"][-3] is None
    gpu = source.gpu_chart("agt-1", [1], "utilization", window("1h", T0 + 120))
    assert gpu.series["GPU 1"][-3:] == [None, 0.5, 0.5]
    assert gpu.source == found.source
    assert found.source == "recent store, its gaps from minute roll-ups"


@pytest.mark.redis
def test_while_redis_is_gone_the_hour_comes_from_roll_ups_and_says_why(told, monkeypatch):
    book(told, 1, T0 + 1)
    services.roll_up(T0 + 71)
    gone = recent.RecentStore("redis://127.0.0.1:1/0", timeout_s=0.1)
    monkeypatch.setattr(recent, "store", lambda: gone)
    hour = window("1h", T0 + 120)
    for found in (
        source.pool_chart("chat", "ttft", hour),
        source.replica_chart("chat", "rpl-1", "kv", hour),
    ):
        assert found.source == "minute roll-ups"
        assert "Redis does not answer" in found.note
    assert source.gpu_chart("agt-1", [1], "utilization", hour).source == "minute roll-ups"
    fine = source.pool_chart("chat", "ttft", window("15m", T0 + 120))
    assert isinstance(fine, NoData)
    assert "Redis does not answer" in fine.reason


@pytest.mark.redis
def test_long_windows_come_from_roll_ups_whatever_redis_does(told, monkeypatch):
    book(told, 1, HOUR0 + 1)
    services.roll_up(HOUR0 + 3700)
    gone = recent.RecentStore("redis://127.0.0.1:1/0", timeout_s=0.1)
    monkeypatch.setattr(recent, "store", lambda: gone)
    for name, word in (("6h", "minute"), ("24h", "minute"), ("7d", "hour"), ("30d", "hour")):
        wanted = window(name, HOUR0 + 4 * 3600)
        for chart in ("ttft", "requests", "kv", "load", "tokens"):
            found = source.pool_chart("chat", chart, wanted)
            assert found.source == f"{word} roll-ups", (name, chart)
            assert any(v is not None for v in found.series[next(iter(found.series))])
        failures = source.replica_chart("chat", "rpl-1", "kv", wanted)
        assert failures.latest("max") == 0.5
        gpus = source.gpu_chart("agt-1", [1], "memory_used_bytes", wanted)
        assert gpus.latest("GPU 1") == 7 * 2**30
        assert source.gpu_spread("chat", {"agt-1": (1,)}, wanted).latest("max") == 0.5
        assert source.level_chart("version", "m:v1", "hit-rate", wanted).latest("hit rate") == 0.0


@pytest.mark.redis
def test_a_window_without_rows_is_no_data_not_zero(told):
    for name in ("6h", "30d"):
        for level, subject in (("fleet", ""), ("tenant", "acme"), ("node", "node-1")):
            found = source.level_chart(level, subject, "requests", window(name, T0))
            assert isinstance(found, NoData)
            assert "Nothing was reported" in found.reason


@pytest.mark.redis
def test_of_fifty_pools_the_busiest_are_drawn_and_the_rest_are_one_line(told, monkeypatch):
    names = [f"p{i:02}" for i in range(50)]
    pools = tuple(delta(pool=n, requests={"200": i}) for i, n in enumerate(names))
    book(told, 1, T0 + 1, pools=pools, replicas=())
    services.roll_up(T0 + 71)
    found = source.pools_chart(window("1h", T0 + 120))
    assert list(found.series) == ["p49", "p48", "p47", "p46", "p45", "45 others"]
    assert found.series["45 others"][-2] == pytest.approx(sum(range(45)) / 5)
    assert "5 busiest of 50" in found.note


def test_retention_forgets_minutes_and_hours_each_in_its_time(db):
    now = datetime(2026, 11, 1, tzinfo=UTC)
    whole = {("fleet", "", ""): Figures(covered_s=60, requests=1)}
    for hours_ago in (1, 47, 49, 24 * 395, 24 * 397):
        at = now - timedelta(hours=hours_ago)
        for step in Step:
            services._keep(step, at, whole, is_whole=True)
    forgotten = services.forget(
        minutes_before=now - timedelta(hours=48), hours_before=now - timedelta(days=396)
    )
    assert forgotten == 4
    assert RollUp.objects.filter(step_s=Step.MINUTE).count() == 2
    assert RollUp.objects.filter(step_s=Step.HOUR).count() == 4


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_minute_written_by_many_workers_at_once_is_whole():
    if connection.vendor != "postgresql":
        pytest.skip("set DATABASE_URL to a PostgreSQL server")
    at = datetime(2026, 11, 1, tzinfo=UTC)
    seen = [
        rolling.Rolled(
            rows={
                ("pool", f"p{i % 4}", "v1"): Figures(covered_s=60, requests=i, statuses={"200": i})
            },
            replicas={f"rpl-{i}": Figures(covered_s=60, requests=i)},
        )
        for i in range(12)
    ]
    results = at_once([partial(services.write_minute, at, rolled) for rolled in seen])
    assert not [r for r in results if isinstance(r, Exception)]
    assert sum(row.requests for row in RollUp.objects.all()) == 8 + 9 + 10 + 11
    members = [m for row in MemberRollUp.objects.all() for m in bytes_of(row)]
    assert sorted(members) == sorted(f"rpl-{i}" for i in range(12))


def bytes_of(row: MemberRollUp) -> list[str]:
    return list(rollups.unpacked_members(bytes(row.members)))


def test_hours_without_minutes_are_skipped_not_walked(db):
    whole = rolling.Rolled(rows={("fleet", "", ""): Figures(covered_s=60, requests=1)})
    early = datetime(2026, 1, 1, tzinfo=UTC)
    services.write_minute(early, whole)
    services.close_hours(early + timedelta(hours=2))
    services.write_minute(early + timedelta(days=200), whole)
    assert services.close_hours(early + timedelta(days=201)) == 1
    assert RollUpState.objects.get().hours_until == early + timedelta(days=200, hours=1)


counts = st.integers(0, 10**6)
figures = st.builds(
    Figures,
    covered_s=st.integers(0, 60),
    requests=counts,
    statuses=st.dictionaries(st.sampled_from(["200", "429", "503"]), counts),
    ttft=st.dictionaries(st.integers(0, 141), counts, max_size=5),
    preemptions=st.none() | counts,
    kv_max=st.none() | st.floats(0, 1),
)


@given(st.lists(figures, min_size=2, max_size=6), st.integers(1, 5))
def test_minutes_add_up_to_the_same_however_they_are_grouped(parts, cut):
    whole = rollups.over_time(parts)
    halves = [rollups.over_time(p) for p in (parts[:cut], parts[cut:]) if p]
    assert rollups.over_time(halves) == whole
    assert rollups.unpacked(rollups.packed(whole)) == whole


@given(figures, figures)
def test_seeing_a_minute_twice_never_takes_back_and_is_stable(old, new):
    once = rollups.settled(old, new)
    assert once.requests >= max(old.requests, new.requests)
    assert rollups.settled(once, new) == once
    assert rollups.settled(once, old).statuses == once.statuses
