"""Overview, system, search, profile, signing in: what needs attention is said first, and why."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.audit import services as audit
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.domain.replica_states import State
from controlplane.overview import attention as attention_of
from controlplane.overview import views
from controlplane.reliability.models import Alert, Silence
from controlplane.routing import selectors
from controlplane.routing.models import LoopRun, Publication, RoutingEpoch
from controlplane.scaling.models import ScalingDecision
from controlplane.telemetry.models import RollUpState
from tests.controlplane.calling import caller, ok
from tests.controlplane.staff import PASSWORD, signed_in, user
from tests.factories import make_agent, make_pool, make_replica, make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh():
    views._problems.clear()


def overview() -> str:
    return signed_in("viewer").get("/").content.decode()


def attention(page: str) -> str:
    return page[page.index("Needs attention") : page.index('id="pools-title"')]


def test_a_pool_without_a_ready_replica_comes_first():
    make_replica(make_pool("sick"), state=State.EJECTED, state_reason="probe timed out after 3 s")
    make_replica(make_pool("well", model="m2"))
    page = overview()
    assert "Pool sick is down" in attention(page)
    assert "probe timed out after 3 s" in attention(page)
    assert "well" not in attention(page)
    table = page[page.index('id="pools-title"') :]
    assert table.index("pool-sick") < table.index("pool-well")


def shown_as(slug: str, client: Client, api: APIClient) -> list[tuple[str, bool]]:
    """Give how each page and the API show a pool: its chip, and whether a reason is told."""
    told = ok(api.get(f"/api/v1/pools/{slug}/"))["health"]
    of_row = re.compile(f'<tr id="pool-{slug}".*?</tr>', re.S)
    pages = [of_row.search(client.get(path).content.decode())[0] for path in ("/", "/pools/")]
    pages.append(client.get(f"/pools/{slug}/").content.decode().split('<p class="sub">')[1])
    chips = [
        re.search(r'class="chip \w+"><span[^>]*>.</span> ([\w ]+)<', page)[1] for page in pages
    ]
    reasons = [told["reason"] in page for page in pages]
    return [(told["code"], bool(told["reason"])), *zip(chips, reasons, strict=True)]


def test_whatever_the_overview_tells_of_a_pool_all_pages_and_the_api_call_it_by_one_rule():
    make_replica(make_pool("calm"))
    make_replica(make_pool("frail", model="m2"))
    make_replica(make_pool("slow", model="m3"))
    make_replica(small := make_pool("small", model="m4"))
    moment = {"since": timezone.now(), "fired_at": timezone.now(), "state": "firing"}
    for pool, rule, severity in (
        ("frail", "burn-fast", "critical"),
        ("frail", "burn-slow", "warning"),
        ("slow", "kv-high", "warning"),
        ("calm", "gpu-low", "warning"),  # costs money only
    ):
        why = f"{rule} says why"
        told = {"rule": rule, "severity": severity, "value": 20, "threshold": 14.4, "reason": why}
        Alert.objects.create(subject=pool, pool=pool, **told, **moment)
    ScalingDecision.objects.create(
        pool=small, code="kept", before=1, raw=3, wanted=1, is_alarm=True, reason="No more.",
        at=timezone.now(), last_at=timezone.now(),
    )  # fmt: skip
    page = overview()
    assert "burn-fast says why" in attention(page)
    assert "gpu-low says why" in attention(page)
    assert "burn-slow says why" not in attention(page)
    table = page[page.index('id="pools-title"') :]
    order = [table.index(f'"pool-{name}"') for name in ("frail", "slow", "small", "calm")]
    assert order == sorted(order)
    client, api = signed_in("operator"), caller("viewer")
    codes = {"frail": "failing", "slow": "degraded", "small": "degraded"}
    for slug, code in codes.items():
        assert shown_as(slug, client, api) == [(code, True)] * 4
    assert [code for code, _ in shown_as("calm", client, api)] == ["healthy"] * 4
    assert "Error budget burns over 14.4 times too fast." in table
    Silence.objects.create(
        pool="frail", starts_at=moment["since"], ends_at=moment["since"] + timedelta(hours=1)
    )
    assert shown_as("frail", client, api)[2][0] == "healthy"  # nobody is to be told


def test_an_alert_of_a_pool_that_only_loads_is_told_and_of_one_that_is_down_only_once():
    make_replica(make_pool("new"), state=State.LOADING)
    make_replica(make_pool("sick", model="n"), state=State.EJECTED, state_reason="dead")
    told = {"rule": "pool-down", "severity": "critical", "state": "firing", "reason": "none ready"}
    for name in ("new", "sick"):
        moment = {"since": timezone.now(), "fired_at": timezone.now()}
        Alert.objects.create(subject=name, pool=name, value=0, threshold=1, **told, **moment)
    listed = attention(overview())
    assert "No replica of the pool is ready: new" in listed
    assert "Pool sick is down" in listed
    assert "is ready: sick" not in listed


def test_a_silent_agent_and_one_behind_are_named():
    make_agent("node-1", live=False)
    make_agent("node-2")
    selectors.publication()
    Publication.objects.update(epoch=5)
    created = timezone.now() - timedelta(minutes=1)
    row = RoutingEpoch.objects.create(epoch=5, fleet_revision=1, digest="d", table=b"{}")
    RoutingEpoch.objects.filter(pk=row.pk).update(created_at=created)
    page = attention(overview())
    assert "Agent on node-1 is silent" in page
    assert "Agent on node-2 runs an older table" in page


def test_a_halt_of_publishing_is_said_with_its_remedy():
    selectors.publication()
    Publication.objects.update(
        halted_reason="agent node-2 runs epoch 41, newer than ours", halted_at=timezone.now()
    )
    page = attention(overview())
    assert "Publishing has stopped" in page
    assert "epoch 41" in page
    assert "manage.py adopt" in page


def test_a_late_loop_and_a_dead_redis_are_problems_of_the_control_plane():
    LoopRun.objects.create(
        name="routing.sweep", interval_s=5, started_at=timezone.now() - timedelta(minutes=3)
    )
    page = overview()
    assert "Control loop routing.sweep is late" in attention(page)
    assert "No live figures." in page
    for name in ("scaling.run", "fleet.adapters"):
        LoopRun.objects.create(
            name=name, interval_s=5, started_at=timezone.now() - timedelta(minutes=2)
        )
    late = [p for p in attention_of.machinery_problems(list(LoopRun.objects.order_by("name")), {})
            if "late" in p.what]  # fmt: skip
    assert [p.what for p in late] == ["3 control loops are late"]
    assert late[0].why == "fleet.adapters, routing.sweep, scaling.run."
    assert late[0].since == LoopRun.objects.get(name="routing.sweep").started_at


def test_loops_that_never_ran_are_told_once_they_had_time():
    audit.record(actor=Actor("x"), verb="first", target=("pool", "x"), reason="", change=(None, 1))
    client = signed_in("viewer")
    assert "No control loop has run" not in client.get("/").content.decode()
    AuditEvent.objects.update(at=timezone.now() - timedelta(minutes=3))
    page = client.get("/").content.decode()
    assert "No control loop has run yet" in attention(page)
    assert "not yet run" in page


def test_a_missing_prometheus_is_said(settings):
    settings.PROMETHEUS_URL = "http://127.0.0.1:1"
    assert "Prometheus is missing" in attention(overview())


def test_rows_left_out_of_the_table_are_problems():
    selectors.publication()
    Publication.objects.update(epoch=1)
    RoutingEpoch.objects.create(
        epoch=1,
        fleet_revision=1,
        digest="d",
        table=b"{}",
        left_out=[{"object": "replica rpl-1", "problem": "its address is not a URL"}],
    )
    assert "replica rpl-1 is left out of the routing table" in attention(overview())


def test_the_menu_s_number_is_polled_and_cheap_when_nothing_changed():
    client = signed_in("viewer")
    make_replica(make_pool(), state=State.FAILED)
    first = client.get("/live/attention/", headers={"HX-Request": "true"})
    count = int(re.search(r'data-count="(\d+)"', first.content.decode()).group(1))
    assert count >= 2
    headers = {"HX-Request": "true", "X-Seen": first["X-Digest"]}
    assert client.get("/live/attention/", headers=headers).status_code == 204


def test_the_system_page_names_each_part_and_what_its_loss_means():
    LoopRun.objects.create(
        name="routing.sweep", interval_s=5, started_at=timezone.now() - timedelta(hours=1)
    )
    page = signed_in("viewer").get("/system/").content.decode()
    for words in ("Database", "recent store", "Prometheus", "not configured", "late"):
        assert words in page


@pytest.mark.parametrize("wanted", ["chat", "node-7", "acme", "rpl-"])
def test_search_finds_things_by_name(wanted):
    make_replica(make_pool("chat"))
    make_agent("node-7")
    make_tenant("acme")
    answer = signed_in("viewer").get(f"/search/?q={wanted}", headers={"HX-Request": "true"})
    assert wanted in answer.content.decode()
    assert "href" in answer.content.decode()


def test_a_single_hit_opens_at_once_and_none_says_so():
    make_tenant("acme")
    client = signed_in("viewer")
    assert client.get("/search/?q=acme")["Location"] == "/tenants/acme/"
    assert b"Nothing is called" in client.get("/search/?q=zzz").content


@pytest.mark.parametrize("text", ["9" * 40, "\x00", "'; drop table --", "²", "<script>"])
def test_search_takes_any_text(text):
    client = signed_in("viewer")
    answer = client.get("/search/", {"q": text})
    assert answer.status_code == 200
    assert b"<script>" not in answer.content


def test_choices_are_kept_in_the_browser():
    client = signed_in("viewer")
    client.post("/profile/", {"theme": "dark", "shortcuts": "off", "density": "nonsense"})
    page = client.get("/").content.decode()
    assert 'data-theme="dark"' in page
    assert 'data-shortcuts="off"' in page
    assert 'data-density="compact"' in page


def test_the_window_is_remembered():
    make_pool()
    client = signed_in("viewer")
    client.get("/pools/chat/?window=1h")
    assert "?window=1h" in client.get("/pools/chat/").content.decode()


def test_signing_in_and_out():
    user("viewer", name="vera")
    client = Client()
    wrong = client.post("/login/", {"username": "vera", "password": "wrong"})
    assert b"correct username and password" in wrong.content
    right = client.post("/login/", {"username": "vera", "password": PASSWORD, "next": "/nodes/"})
    assert right["Location"] == "/nodes/"
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_every_answer_carries_a_policy_without_unsafe():
    policy = signed_in("viewer").get("/")["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy


@pytest.mark.parametrize(
    ("minutes_ago", "report_age_s", "late"),
    [(1, 1.0, False), (10, 1.0, True), (10, 90000.0, False)],
)
def test_roll_ups_are_late_only_while_agents_report(minutes_ago, report_age_s, late):
    until = timezone.now() - timedelta(minutes=minutes_ago)
    RollUpState.objects.create(pk=1, minutes_until=until)
    assert (views.rolled_up(report_age_s)["late_s"] is not None) == late
    assert views.rolled_up(None)["late_s"] is None
