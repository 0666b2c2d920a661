"""Lists are sorted by the server: by links in the heads, and by the same parameter in the API."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module

import pytest
from django.http import QueryDict
from django.template.loader import get_template
from django.utils import timezone

from controlplane.api.router import router
from controlplane.audit.models import AuditEvent
from controlplane.console.listing import Listing, Sorting
from controlplane.domain.alerts import State
from controlplane.domain.ordering import MOST
from controlplane.fleet.models import Pool
from controlplane.reliability.models import Alert
from controlplane.rest.ordering import columns
from controlplane.scaling.models import ScalingDecision, ScalingPolicy
from controlplane.scaling.views import DECISIONS_SHOWN
from controlplane.usage.models import RequestRecord
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import poll, signed_in
from tests.factories import make_agent, make_key, make_node, make_pool, make_replica, make_tenant

pytestmark = pytest.mark.django_db

LISTS = ["/pools/", "/nodes/", "/versions/", "/tenants/", "/requests/", "/audit/",
         "/pools/c-pool/", "/nodes/node-b/", "/slos/", "/tenants/zeta/", "/t/zeta/keys/",
         "/scaling/", "/alerts/"]  # fmt: skip


@pytest.fixture
def rows():
    node = make_agent("node-b").node
    for number, slug in enumerate(("b-pool", "a-pool", "c-pool")):
        pool = make_pool(slug, model=f"m{number}")
        for _ in range(number):
            make_replica(pool, node=node)
    make_node("node-a")
    zeta = make_tenant("zeta")
    for name in ("k-two", "k-one"):
        make_key(zeta, name=name)
    pool = Pool.objects.get(slug="a-pool")
    now = timezone.now()
    ScalingPolicy.objects.create(pool=pool)
    for number in range(DECISIONS_SHOWN + 1):
        ScalingDecision.objects.create(
            pool=pool, at=now, last_at=now, code="none", before=1, raw=number, wanted=1, reason="r"
        )
    for number, (rule, subject) in enumerate((("queue-long", "a"), ("kv-high", "b"))):
        for state, ended_at in ((State.FIRING, None), (State.RESOLVED, now)):
            Alert.objects.create(
                rule=rule, subject=subject, severity="warning", state=state, value=1, threshold=1,
                since=now, fired_at=now - timedelta(minutes=number), resolved_at=ended_at,
            )  # fmt: skip
    make_tenant("alpha", priority=1)
    AuditEvent.objects.create(actor="b", actor_kind="user", verb="pool.create", target="x")
    AuditEvent.objects.create(actor="a", actor_kind="user", verb="pool.create", target="y")
    for number, ttft_s in enumerate((0.2, None, 0.1)):
        RequestRecord.objects.create(
            uid=f"u{number}", request_id=f"r{number}", ttft_s=ttft_s, status=200, life={},
            failed=False,
            received_at=timezone.now() - timedelta(minutes=number),
        )  # fmt: skip


def ids(page: str) -> list[str]:
    return re.findall(r'<tr id="([\w-]+)"', page)


def sorts(page: str) -> list[str]:
    return re.findall(r'<a class="sort" href="\?([^"]*)"', page)


def test_every_head_of_a_list_sorts_it_shows_the_direction_and_survives_a_poll(rows):
    client = signed_in()
    for path in LISTS:
        plain = client.get(path).content.decode()
        assert "aria-sort" not in plain
        own = ids(plain)
        links = sorts(plain)
        assert len(links) >= 5
        for query in (links[0], links[-1]):
            once = client.get(f"{path}?{query}").content.decode()
            assert once.count("aria-sort=") == 1
            assert sorted(ids(once)) == sorted(own)
            name = query.removeprefix("ordering=")
            turned = name.removeprefix("-") if name.startswith("-") else f"-{name}"
            assert f"ordering={turned}" in sorts(once)
            if '<form class="filters' in once:  # kept when a filter is chosen
                assert 'type="hidden" name="ordering"' in once
        again = sorts(client.get(f"{path}?ordering={turned}").content.decode())
        assert "" in again  # the third click: the list's own order
        if path != "/audit/":
            assert 'aria-sort="' in poll(client, f"{path}?{links[0]}").content.decode()


def test_a_list_has_a_head_for_each_column_that_it_can_be_sorted_by():
    import_module("controlplane.urls")
    views = Listing.__subclasses__()
    assert len(views) >= 9
    for view in views:
        template = get_template(view.fragment_name or view.template_name).template.source
        if view.nav_name == "pools":
            template = get_template("fleet/_pool_table.html").template.source
        heads = set(re.findall(r'{% head "(\w+)"', template))
        assert heads == {*view.sorts, *view.row_sorts}, view
        for name in view.sorts:  # the database takes each
            sorting = Sorting.of(QueryDict(f"ordering=-{name}"), view.sorts)
            list(sorting.queryset(view().queryset(), view.sorts)[:1])


def test_an_order_is_that_of_the_figures_and_what_has_none_comes_last(rows):
    client = signed_in()

    def order(path: str) -> list[str]:
        return ids(client.get(path).content.decode())

    assert order("/pools/?ordering=slug") == ["pool-a-pool", "pool-b-pool", "pool-c-pool"]
    assert order("/pools/?ordering=-ready_count") == ["pool-c-pool", "pool-a-pool", "pool-b-pool"]
    assert order("/nodes/?ordering=applied_epoch") == ["node-node-b", "node-node-a"]
    assert order("/nodes/?ordering=-applied_epoch") == ["node-node-b", "node-node-a"]
    assert order("/requests/?ordering=ttft_s") == ["request-u2", "request-u0", "request-u1"]
    assert order("/requests/?ordering=-ttft_s") == ["request-u0", "request-u2", "request-u1"]
    table = client.get("/tenants/?ordering=-slug&csv=1").content.decode().splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["zeta", "alpha"]
    shown = client.get("/tenants/?ordering=-slug&q=a&page=1").content.decode()
    assert "ordering=-slug" in re.search(r'href="([^"]*csv=1[^"]*)"', shown)[1]
    assert 'href="/tenants/?ordering=-slug">Clear filters' in shown


def test_alerts_keys_and_decisions_are_sorted_by_what_they_show_and_decisions_have_pages(rows):
    client = signed_in()

    def order(path: str, what: str) -> list[str]:
        return re.findall(what, client.get(path).content.decode())

    alerts = r'<tr id="alert-\d+">.*?(KV cache|Queue) over'
    assert order("/alerts/?ordering=title", alerts) == ["KV cache", "Queue"] * 2
    assert order("/alerts/?ordering=-title", alerts) == ["Queue", "KV cache"] * 2
    assert order("/alerts/?ordering=fired_at", alerts) == ["KV cache", "Queue"] * 2
    for path in ("/tenants/zeta/", "/t/zeta/keys/"):
        assert order(f"{path}?ordering=name", "<td>(k-...)") == ["k-one", "k-two"]
        assert order(f"{path}?ordering=-name", "<td>(k-...)") == ["k-two", "k-one"]
    raw = r'→ 1</td><td class="num">(\d+)'
    for path in ("/scaling/", "/scaling/a-pool/"):
        assert order(f"{path}?ordering=-raw", raw) == [
            str(n) for n in range(DECISIONS_SHOWN, 0, -1)
        ]
        assert order(f"{path}?ordering=-raw&page=2", raw) == ["0"]
    assert "page=2" in client.get("/scaling/").content.decode()
    assert "csv=1" not in client.get("/scaling/").content.decode()  # it has none


def test_a_column_that_a_list_does_not_have_is_named_and_its_own_order_shown(rows):
    client, api = signed_in(), caller("viewer")
    own = ids(client.get("/pools/").content.decode())
    for name in ("token", "pk__x", "%00", "<b>", "slug,-password"):
        shown = client.get(f"/pools/?ordering={name}").content.decode()
        assert ids(shown) == own
        assert "It is shown in its own order." in shown
        assert "<b>" not in shown
        refused = api.get(f"/api/v1/pools/?ordering={name}")
        assert problem(refused, 400, "invalid")["field"] == "ordering"


def test_every_list_of_the_api_sorts_by_each_of_its_columns(rows):
    client = caller("admin")
    tried = 0
    for prefix, view, _ in router.registry:
        names = sorted(columns(view)) if hasattr(view, "list") else []
        for some in (names[i : i + MOST] for i in range(0, len(names), MOST)):
            ok(client.get(f"/api/v1/{prefix}/?ordering=-{','.join(some)}"))
        tried += len(names)
    assert tried > 100
    pages = [
        ok(client.get(f"/api/v1/requests/?ordering=-ttft_s&page_size=1&page={n}"))["results"][0]
        for n in (1, 2, 3)
    ]
    assert [row["request_id"] for row in pages] == ["r0", "r2", "r1"]
    both = ok(client.get("/api/v1/pools/?ordering=traffic_class,-ready_count"))["results"]
    assert [row["slug"] for row in both] == ["c-pool", "a-pool", "b-pool"]
