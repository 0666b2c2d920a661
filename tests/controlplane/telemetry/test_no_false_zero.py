"""Whatever is missing, no chart at any level draws a zero that nobody said, and it says why."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import time_machine
from django.test import Client

from controlplane.fleet.views import charts
from controlplane.overview import figures
from controlplane.telemetry import prometheus as prometheus_module
from controlplane.telemetry import recent, services, source
from controlplane.telemetry.prometheus import Prometheus
from controlplane.telemetry.snapshots import WINDOWS
from controlplane.tenants.views.pages import TENANT_CHARTS
from routing_agent import wire
from tests.controlplane.staff import signed_in
from tests.controlplane.telemetry.conftest import delta, replica, report
from tests.factories import make_agent, make_pool, make_replica, make_tenant, make_version

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.one_database,
    pytest.mark.django_db,
]

LATENCIES = ("ttft", "tpot", "e2e", "queue_wait")
BOTH_STORES = ("15m", "1h")  # one is read from the recent store, one from roll-ups
Drawn = dict[str, dict[str, Any]]  # address → payload


class Watched:
    """A fleet of which every figure is above zero whenever it is told, and its charts."""

    def __init__(self, store: recent.RecentStore, client: Client) -> None:
        self.store, self.client = store, client
        agent = make_agent("node-1", public_id="agt-1")
        make_replica(make_pool(), public_id="rpl-1", node=agent.node, gpu_indices=[0])
        make_tenant()
        self.number = 0
        self.told_at = 0.0
        self.started_at = 5.0
        self.now = time.time()
        self.minute = self.now - 15  # frozen at a quarter past a minute

    def tell(self, at: float, **given: Any) -> None:
        """Have the agent report a busy moment, and all that it counted since it last did."""
        covers_s = min(at - self.told_at, 3600.0) if self.told_at else 2.0
        times = max(1, round(covers_s / 2))  # as much as in as many ordinary reports
        self.told_at = at
        self.number += times
        n = self.number
        told: dict[str, Any] = {
            "number": n,
            "covers_s": covers_s,
            "pools": (
                delta(
                    requests={"200": 8 * times, "503": 4 * times},
                    **{name: {60: 8 * times} for name in LATENCIES},
                    prompt_tokens=100 * times,
                    cached_prompt_tokens=50 * times,
                    output_tokens=70 * times,
                ),
            ),
            "tenants": (
                wire.TenantDelta(
                    tenant="acme",
                    requests={"200": 8 * times, "503": 4 * times},
                    prompt_tokens=9 * times,
                    output_tokens=9 * times,
                ),
            ),
            "replicas": (
                replica(
                    requests_total=10 * n,
                    errors_total=4 * n,
                    prompt_tokens_total=100 * n,
                    cached_prompt_tokens_total=50 * n,
                    output_tokens_total=70 * n,
                    preemptions_total=5 * n,
                    engine_running=3,
                    engine_waiting=2,
                    kv_usage=0.5,
                ),
            ),
            "node": wire.NodeFacts(
                gpus=(
                    wire.Gpu(
                        index=0,
                        model="H100",
                        utilization_ratio=0.5,
                        memory_used_bytes=2**30,
                        temperature_celsius=50.0,
                    ),
                )
            ),
        }
        self.store.book(report(**({"started_at": self.started_at} | told | given)), at)

    def tell_minutes(self, first: int, last: int) -> None:
        """Report every two seconds from `first` to `last` minutes before this one."""
        begin, end = int(self.minute - 60 * first), int(self.minute - 60 * last)
        for at in range(begin, end, 2):
            self.tell(at + 1)

    def draw(self, windows: Iterable[str] = BOTH_STORES) -> Drawn:
        """Draw every chart of every level for these windows."""
        for cache in (source._points, charts._bodies):
            cache.clear()
        version = make_version().pk
        addresses = [
            *(f"/live/pools/chat/{c}.json" for c in charts.POOL_CHARTS),
            *(f"/live/replicas/rpl-1/{c}.json" for c in charts.REPLICA_CHARTS),
            *(f"/live/nodes/node-1/{c}.json" for c in charts.NODE_CHARTS),
            *(f"/live/versions/{version}/{c}.json" for c in figures.VERSION_CHARTS),
            *(f"/live/fleet/{c}.json" for c in figures.FLEET_CHARTS),
            *(f"/live/tenants/acme/{c}.json" for c in TENANT_CHARTS),
        ]
        return {
            f"{a}?window={w}": json.loads(self.client.get(a, {"window": w}).content)
            for a in addresses
            for w in windows
        }


@pytest.fixture
def watched(store, monkeypatch) -> Iterator[Watched]:
    with time_machine.travel(time.time() // 60 * 60 + 15, tick=False):
        yield from _watched(store, monkeypatch)


def _watched(store, monkeypatch) -> Iterator[Watched]:
    monkeypatch.setattr(recent, "_store", store)
    monkeypatch.setattr(recent, "store", lambda: recent._store)
    yield Watched(store, signed_in("viewer"))
    source._points.clear()
    charts._bodies.clear()


def zeros(drawn: Drawn) -> list[str]:
    """Name the charts that draw a zero."""
    return [
        address
        for address, payload in drawn.items()
        for trace in payload.get("figure", {}).get("data", ())
        if trace["meta"]["style"] != "mark" and 0 in trace["y"]
    ]


def silent(drawn: Drawn) -> list[str]:
    """Name the charts that show nothing and do not say why."""
    return [a for a, p in drawn.items() if p["state"] == "none" and len(p["reason"]) < 20]


def drawn_of(drawn: Drawn, window: str) -> set[str]:
    """Name the charts of a window that show something."""
    end = f"?window={window}"
    return {a for a, p in drawn.items() if a.endswith(end) and p["state"] == "live"}


def assert_honest(drawn: Drawn) -> None:
    assert zeros(drawn) == []
    assert silent(drawn) == []


def test_before_the_first_report_every_chart_says_why_it_is_empty(watched):
    drawn = watched.draw()
    assert_honest(drawn)
    assert {p["state"] for p in drawn.values()} == {"none"}


def test_everything_is_drawn_when_all_is_well(watched):
    watched.tell_minutes(8, 0)
    services.roll_up(watched.now)
    drawn = watched.draw(("5m", "15m", "1h"))
    assert_honest(drawn)
    for window in ("5m", "15m", "1h"):  # longer ones may end before the first report
        missing = {a for a in drawn if a.endswith(f"={window}")} - drawn_of(drawn, window)
        assert missing == set(), window


def test_an_agent_that_is_gone_leaves_a_gap(watched):
    watched.tell_minutes(12, 8)
    services.roll_up(watched.now)
    drawn = watched.draw()
    assert_honest(drawn)
    late = drawn["/live/pools/chat/requests.json?window=15m"]
    assert "nothing newer than" in late["source"]
    assert late["figure"]["data"][0]["y"][-1] is None
    watched.number, watched.told_at, watched.started_at = 0, 0.0, 9.0
    watched.tell_minutes(2, 0)  # another process of it is back
    drawn = watched.draw()
    assert_honest(drawn)
    answered = drawn["/live/pools/chat/requests.json?window=15m"]["figure"]["data"][0]["y"]
    assert None in answered[60:140]  # the time it was gone stays a gap
    assert answered[-1] is not None


def test_an_agent_that_was_cut_off_tells_what_it_counted_meanwhile(watched):
    watched.tell_minutes(12, 8)
    services.roll_up(watched.now)
    watched.tell(watched.minute - 120)
    watched.tell_minutes(2, 0)
    services.roll_up(watched.now)
    drawn = watched.draw()
    assert_honest(drawn)
    answered = drawn["/live/pools/chat/requests.json?window=1h"]["figure"]["data"][0]["y"]
    assert None not in answered[-12:]


def test_a_redis_that_is_gone_or_emptied_is_said_and_heals(watched, monkeypatch):
    watched.tell_minutes(8, 2)
    services.roll_up(watched.now)
    gone = recent.RecentStore("redis://127.0.0.1:1/0", timeout_s=0.1)
    with monkeypatch.context() as away:
        away.setattr(recent, "_store", gone)
        drawn = watched.draw()
        assert_honest(drawn)
        assert "Redis" in drawn["/live/pools/chat/ttft.json?window=15m"]["reason"]
        assert drawn["/live/pools/chat/ttft.json?window=1h"]["state"] == "live"
        assert drawn["/live/fleet/ttft.json?window=15m"]["state"] == "live"
    watched.store._redis.flushall()
    drawn = watched.draw()
    assert_honest(drawn)
    assert drawn["/live/pools/chat/ttft.json?window=1h"]["state"] == "live"
    watched.tell_minutes(1, 0)
    drawn = watched.draw()
    assert_honest(drawn)
    assert drawn["/live/pools/chat/ttft.json?window=15m"]["state"] == "live"


def test_a_prometheus_that_is_killed_is_said_and_the_rest_is_drawn(
    watched, settings, prometheus_server, monkeypatch
):
    settings.PROMETHEUS_URL = prometheus_server.url
    client = Prometheus(prometheus_server.url, deadline_s=0.5)
    monkeypatch.setattr(prometheus_module, "_client", client)
    watched.tell_minutes(8, 0)
    services.roll_up(watched.now)
    prometheus_server.stop()
    drawn = watched.draw()
    assert_honest(drawn)
    found = drawn["/live/pools/chat/ttft.json?window=15m"]
    assert found["state"] == "live"
    assert "Prometheus is unreachable" in found["note"]


def test_figures_an_engine_does_not_export_are_gaps_everywhere(watched):
    untold: dict[str, Any] = {"engine_running": None, "engine_waiting": None, "kv_usage": None}
    for i in range(60):
        bare = replica(requests_total=i + 1, prompt_tokens_total=i + 1, output_tokens_total=i + 1,
                       cached_prompt_tokens_total=i + 1, errors_total=i + 1, **untold)  # fmt: skip
        gpu = wire.Gpu(index=0, model="H100")
        watched.tell(
            watched.minute - 240 + 2 * i, replicas=(bare,), node=wire.NodeFacts(gpus=(gpu,))
        )
    services.roll_up(watched.now)
    drawn = watched.draw(WINDOWS)
    assert_honest(drawn)
    for chart in ("kv", "load", "preemptions", "gpu"):
        for window in WINDOWS:
            for page in ("pools/chat", "replicas/rpl-1", "fleet"):
                assert drawn[f"/live/{page}/{chart}.json?window={window}"]["state"] == "none"


@pytest.mark.parametrize("apart_s", [300.0, -300.0])
def test_clocks_five_minutes_apart_change_nothing(watched, apart_s):
    """The agent's clock is never looked at; a worker's that is ahead rolls up early, and again."""
    sent = {"sent_at": watched.now + apart_s}
    for at in range(int(watched.minute) - 120, int(watched.minute) - 60, 2):
        watched.tell(at + 1, **sent)
    services.roll_up(watched.now + apart_s)
    for at in range(int(watched.minute) - 60, int(watched.minute), 2):
        watched.tell(at + 1, **sent)
    services.roll_up(watched.now + apart_s)
    services.roll_up(watched.now + 61)
    drawn = watched.draw(("5m", "1h"))
    assert_honest(drawn)
    (answered, _, *_rest) = drawn["/live/fleet/requests.json?window=5m"]["figure"]["data"]
    assert [v for v in answered["y"] if v is not None] == pytest.approx([4.0, 4.0], abs=0.2)
