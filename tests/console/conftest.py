"""Headless Chromium in front of the live server, a Redis with reports, and a small fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.catalog.models import ModelVersion
from controlplane.domain.replica_states import State
from controlplane.fleet.models import Replica
from controlplane.fleet.views import charts
from controlplane.overview import views
from controlplane.routing import services
from controlplane.scaling import services as scaling
from controlplane.telemetry import recent, source
from controlplane.telemetry import services as roll_ups
from controlplane.usage import services as usage
from routing_agent import wire
from tests import adapters
from tests.chromium import chromium
from tests.console.rolling_out import roll_out
from tests.controlplane.staff import signed_in
from tests.controlplane.usage.lives import failure, life
from tests.factories import WHY, make_agent, make_key, make_pool, make_replica, make_tenant
from tests.redis_server import RedisServer

QUIET = """!document.querySelector(".htmx-request") &&
  [...document.querySelectorAll("figure[data-chart]")].every(f => !f.busy)"""
AXE = Path(__file__).parent / "vendor/axe.min.js"


@pytest.fixture(scope="package")  # it ends before tests of other folders run loops of their own
def browser() -> Iterator[Any]:
    """One Chromium for all tests here; each has a context of its own."""
    with chromium() as started:
        yield started


@dataclass
class Visitor:
    """A signed-in tab that remembers everything that was said and asked."""

    tab: Any
    origin: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def go(self, path: str) -> Visitor:
        """Open a page and wait until its scripts ran and it is quiet."""
        self.tab.goto(self.origin + path)
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until no answer is awaited."""
        self.until(QUIET)

    def until(self, condition: str) -> None:
        """Wait for a condition of the page; asked from outside, as the page forbids `eval`."""
        deadline = time.monotonic() + 20
        while not self.tab.evaluate(condition):
            assert time.monotonic() < deadline, f"never came true on {self.tab.url}: {condition}"
            self.tab.wait_for_timeout(20)

    def tick(self) -> None:
        """Do what the clock does every five seconds, and wait for the answers."""
        self.tab.evaluate("document.body.dispatchEvent(new CustomEvent('tick'))")
        self.settle()

    def text(self, selector: str = "main") -> str:
        """Give what a part of the page says."""
        return self.tab.inner_text(selector)


@pytest.fixture
def visit(browser: Any, live_server: Any) -> Iterator[Callable[..., Visitor]]:
    """Give a function that opens a tab for somebody with a role."""
    contexts = []

    def open_tab(role: str = "operator", **options: Any) -> Visitor:
        context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
        contexts.append(context)
        cookie = signed_in(role).cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])
        visitor = Visitor(tab=context.new_page(), origin=live_server.url)
        visitor.tab.set_default_timeout(15_000)
        visitor.tab.on("console", lambda message: visitor.said.append(message.text))
        visitor.tab.on("pageerror", lambda error: visitor.said.append(str(error)))
        visitor.tab.on("dialog", lambda dialog: visitor.said.append(f"dialog {dialog.message}"))
        visitor.tab.on("request", lambda request: visitor.asked.append(request.url))
        return visitor

    yield open_tab
    for context in contexts:
        context.close()


@dataclass
class Fleet:
    """What the tests look at."""

    ready: Replica
    other: Replica
    ejected: Replica
    epoch: int
    adapter: str


def report(agent: str, replicas: list[Replica], number: int) -> wire.Report:
    """A busy agent's report."""
    gpu: dict[str, Any] = {
        "model": "H100",
        "memory_bytes": 80 * 2**30,
        "memory_used_bytes": 60 * 2**30,
    }
    return wire.Report(
        agent=agent,
        number=number,
        started_at=1.0,
        sent_at=0.0,
        leases=wire.LeaseHealth(answered=12, failed=1, waited=30, waited_in_vain=2, mean_s=0.02),
        node=wire.NodeFacts(
            gpus=tuple(wire.Gpu(index=i, utilization_ratio=0.7, **gpu) for i in range(2))
        ),
        replicas=tuple(
            wire.ReplicaReport(
                replica=r.public_id,
                pool=r.pool.slug,
                health="healthy",
                engine_running=2,
                engine_waiting=1,
                kv_usage=0.4,
                scrape_age_s=0.5,
                inflight_requests=3,
                requests_total=10 * number,
                prompt_tokens_total=1000 * number,
            )
            for r in replicas
        ),
        pools=(
            wire.PoolDelta(
                pool="chat",
                version="v1",
                requests={"200": 20, "502": 1},
                ttft={50: 15, 60: 5},
                tpot={30: 20},
                e2e={80: 20},
                queue_wait={20: 20},
                prompt_tokens=2000,
                cached_prompt_tokens=900,
                output_tokens=4000,
            ),
        ),
    )


@pytest.fixture
def fleet(
    transactional_db: None, redis_server: RedisServer, settings: Any, tmp_path: Path
) -> Fleet:
    """Two pools, an ejected replica, an agent with GPUs and reports, a tenant with a key."""
    settings.ADAPTER_DIR = tmp_path / "adapters"
    settings.REDIS_URL = redis_server.url
    settings.REDIS_TIMEOUT_S = 5.0  # a busy machine is no outage
    store = recent.store()
    store._redis.flushall()
    for cache in (charts._bodies, views._problems):
        cache.clear()
    agent = make_agent("node-1", started_at=None)
    pool = make_pool(wanted_replicas=2)
    make_pool("embed", model="bge")
    held: dict[str, Any] = {"node": agent.node, "gpu_indices": [0, 1]}
    ready, other = make_replica(pool, **held), make_replica(pool, **held)
    ejected = make_replica(pool, state=State.EJECTED, state_reason="probe timed out after 3 s")
    make_key(make_tenant())
    adapter = adapters.keep().public_id
    kept = [life(), failure(), life("req-left", status=499, error="client_left")]
    usage.book_records(agent=agent, records=kept)
    epoch = services.republish(**WHY)
    now = time.time()
    for i in range(120):
        store.book(report(agent.public_id, [ready, other], i + 1), now - 240 + 2 * i)
    source._points.clear()
    roll_ups.roll_up(now)
    return Fleet(ready=ready, other=other, ejected=ejected, epoch=epoch, adapter=adapter)


@pytest.fixture
def pages(fleet: Fleet) -> list[str]:
    """Every page of the console."""
    rollout, pair = roll_out(fleet.ready.pool)
    scaling.set_policy(pool="chat", program="simulated", min_replicas=2, **WHY)
    scaling.decide_all(timezone.now())
    return [
        "/",
        "/pools/",
        "/pools/chat/",
        "/pools/embed/",
        "/pools/chat/edit/",
        "/register/pool/",
        f"/replicas/{fleet.ready.public_id}/",
        f"/replicas/{fleet.ejected.public_id}/",
        "/nodes/",
        "/nodes/node-1/",
        "/fleet/",
        "/versions/",
        f"/versions/{ModelVersion.objects.get(model__name='m', name='v1').pk}/",
        "/rollouts/",
        "/rollouts/start/",
        f"/rollouts/{rollout}/",
        f"/rollouts/{rollout}/abort/",
        "/shadow-pairs/",
        f"/shadow-pairs/{pair}/",
        "/pools/chat/shadow/",
        "/pools/chat/traffic/",
        "/routing/",
        f"/routing/epochs/{fleet.epoch}/",
        "/routing/explain/?model=m",
        "/routing/republish/",
        "/alerts/",
        "/alerts/silences/?rule=ttft-high&pool=chat",
        "/alerts/webhooks/",
        "/slos/",
        "/slos/chat/edit/",
        "/slos/maintenance/",
        "/diagnosis/chat/",
        "/diagnosis/chat/?question=oom",
        "/configuration/",
        "/scaling/",
        "/scaling/chat/",
        "/scaling/embed/",
        "/scaling/chat/policy/",
        "/scaling/chat/override/",
        "/planning/",
        "/planning/?pool=chat&model=qwen2.5-7b&gpu=a100-80gb&replica_requests_per_s=3&what_if=on",
        "/planning/?model=qwen2.5-32b&gpu=l4",
        "/which-model/",
        "/which-model/m/edit/",
        "/tenants/",
        "/tenants/acme/",
        "/tenants/acme/keys/new/",
        "/tenants/acme/edit/",
        "/tenants/acme/members/new/",
        "/tenants/new/",
        "/staff/",
        "/staff/new/",
        "/t/acme/",
        "/t/acme/keys/",
        "/t/acme/keys/new/",
        "/t/acme/models/",
        "/t/acme/limits/",
        "/t/acme/members/",
        "/adapters/",
        "/adapters/upload/",
        f"/adapters/{fleet.adapter}/",
        f"/adapters/{fleet.adapter}/edit/",
        f"/adapters/{fleet.adapter}/delete/",
        "/t/acme/adapters/",
        "/t/acme/adapters/upload/",
        f"/t/acme/adapters/{fleet.adapter}/",
        "/requests/",
        "/requests/req-1/",
        "/requests/req-bad/",
        "/audit/",
        "/system/",
        "/search/?q=a",
        "/profile/",
    ]
