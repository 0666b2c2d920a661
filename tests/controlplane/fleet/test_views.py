"""Pages of the fleet: who may see and do what, what a click changes, what a stale one does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain.replica_states import State
from controlplane.fleet import rows
from controlplane.fleet.models import Node, Pool, Replica
from controlplane.routing import selectors as routing
from controlplane.telemetry import live, recent
from routing_agent import wire
from tests.controlplane.staff import poll, signed_in
from tests.factories import make_agent, make_node, make_pool, make_replica

pytestmark = pytest.mark.django_db


@pytest.fixture
def replica():
    pool = make_pool()
    make_replica(pool)
    return make_replica(pool)


def act(client: Client, name: str, replica: Replica, **data):
    return client.post(reverse(name, args=[replica.public_id]), data)


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_every_role_sees_every_page_of_the_fleet(replica, role):
    make_agent("node-9")
    client = signed_in(role)
    for url in (
        "/pools/",
        "/pools/chat/",
        f"/replicas/{replica.public_id}/",
        "/nodes/",
        "/nodes/node-9/",
        "/live/pools/chat/ttft.json",
        f"/live/replicas/{replica.public_id}/kv.json",
        "/live/nodes/node-9/utilization.json",
    ):
        assert client.get(url).status_code == 200, url


def test_a_stranger_is_sent_to_the_login_page(replica):
    answer = Client().get("/pools/chat/")
    assert answer.status_code == 302
    assert answer["Location"] == "/login/?next=/pools/chat/"


def test_a_stranger_s_poll_is_sent_away_without_content(replica):
    answer = poll(Client(), "/pools/chat/")
    assert answer["HX-Redirect"].startswith("/login/")
    assert answer.content == b""


def test_a_user_without_a_role_is_told_so(replica):
    answer = signed_in("").get("/pools/chat/")
    assert answer.status_code == 403
    assert b"An admin can give you one" in answer.content


def test_a_viewer_sees_no_button_and_may_press_none(replica):
    client = signed_in("viewer")
    page = client.get("/pools/chat/").content.decode()
    assert "Drain replica" not in page
    assert "Change policy" not in page
    for name in ("drain", "eject", "restore"):
        assert act(client, name, replica).status_code == 403
    assert client.get("/pools/chat/edit/").status_code == 403
    replica.refresh_from_db()
    assert replica.state == State.READY


@pytest.mark.parametrize("name", ["drain", "eject", "restore"])
def test_an_action_is_never_a_get(replica, name):
    answer = signed_in().get(reverse(name, args=[replica.public_id]))
    assert answer.status_code == 405
    replica.refresh_from_db()
    assert replica.state == State.READY


def test_draining_states_its_effect_before_it_is_done(replica):
    page = signed_in().get("/pools/chat/").content.decode()
    assert "Pool chat keeps 1 ready." in page


def test_draining_the_last_ready_replica_says_what_that_means():
    replica = make_replica(make_pool())
    page = signed_in().get(f"/replicas/{replica.public_id}/").content.decode()
    assert "No replica of pool chat stays ready: its requests get 503." in page


def test_a_drain_moves_the_replica_records_why_and_is_followed(replica):
    client = signed_in()
    answer = act(client, "drain", replica, reason="driver update", next="/pools/chat/")
    assert (answer.status_code, answer["Location"]) == (302, "/pools/chat/")
    replica.refresh_from_db()
    assert replica.state == State.DRAINING
    event = AuditEvent.objects.first()
    assert (event.verb, event.actor, event.reason) == (
        "replica.drain",
        "a-operator",
        "driver update",
    )
    page = client.get("/pools/chat/").content.decode()
    assert f"/live/observed/{event.fleet_revision}/" in page


def test_a_click_on_an_older_page_is_refused_with_409(replica):
    client = signed_in()
    seen = replica.version
    act(client, "drain", replica, expected_version=seen)
    answer = act(client, "eject", replica, expected_version=seen)
    assert answer.status_code == 409
    assert "Moved meanwhile, look again" in answer.content.decode()


def test_an_action_never_sends_anybody_elsewhere(replica):
    answer = act(signed_in(), "drain", replica, next="https://evil.example/")
    assert answer["Location"] == f"/replicas/{replica.public_id}/"


def test_an_impossible_action_is_disabled_with_its_reason(replica):
    page = signed_in().get("/pools/chat/").content.decode()
    assert 'title="Restore: nothing to restore it from"' in page


@pytest.mark.parametrize("url", ["/pools/none/", "/replicas/none/", "/nodes/none/"])
def test_what_does_not_exist_is_a_404_that_says_so(url):
    answer = signed_in().get(url)
    assert answer.status_code == 404
    assert "There is no" in answer.content.decode()


def test_a_poll_answers_204_when_nothing_changed(replica):
    client = signed_in()
    first = poll(client, "/pools/chat/")
    assert first.status_code == 200
    assert poll(client, "/pools/chat/", first["X-Digest"]).status_code == 204
    act(client, "drain", replica)
    assert poll(client, "/pools/chat/", first["X-Digest"]).status_code == 200


def test_a_chart_is_strict_json_with_an_etag(replica):
    client = signed_in()
    first = client.get("/live/pools/chat/ttft.json")
    told = json.loads(first.content, parse_constant=pytest.fail)
    assert told["state"] == "none"
    assert "Redis" in told["reason"]
    again = client.get("/live/pools/chat/ttft.json", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("url", ["/live/pools/chat/nonsense.json", "/live/pools/none/ttft.json"])
def test_an_unknown_chart_is_a_404(replica, url):
    assert signed_in().get(url).status_code == 404


def test_without_redis_pages_say_what_is_missing(replica):
    client = signed_in()
    page = client.get("/pools/chat/").content.decode()
    assert "No live figures." in page
    assert "Traffic is not affected" in page
    assert "Redis does not answer" in client.get("/pools/").content.decode()
    node = make_agent("bare").node
    Node.objects.filter(pk=node.pk).update(gpus=[{"index": 0, "model": "A100"}])
    Replica.objects.filter(pk=replica.pk).update(node=node, gpu_indices=[0])
    for path in ("/nodes/", "/nodes/bare/", f"/replicas/{replica.public_id}/"):  # no reading
        assert 'class="gpus old"' in client.get(path).content.decode()


def test_what_agents_believe_of_a_cache_is_shown(replica, monkeypatch):
    def told(blocks, **more):
        prefix = wire.PrefixReport(blocks=blocks, capacity_blocks=900, **more)
        seen = wire.ReplicaReport(replica=replica.public_id, health="healthy", prefix=prefix)
        return wire.Report(agent="a", number=1, started_at=0.0, sent_at=0.0, replicas=(seen,))

    most = told(450, prefill_tokens_per_s=410.0, kv_events="last heard 1 s ago")
    monkeypatch.setattr(recent, "latest_reports", lambda: {"a": (told(7), 1.0), "b": (most, 1.5)})
    page = signed_in().get(f"/replicas/{replica.public_id}/").content.decode()
    assert "450 of 900 blocks believed cached" in page
    assert "410 tokens a second, as learned" in page
    assert "last heard 1 s ago" in page


def test_names_are_text():
    node = make_node(zone="<img src=x onerror=alert(1)>")
    assert b"<img src=x" not in signed_in().get(f"/nodes/{node.name}/").content


def test_lists_of_200_pools_and_2000_replicas_cost_few_queries(django_assert_max_num_queries):
    pools = [make_pool(f"pool-{i}") for i in range(200)]
    Replica.objects.bulk_create(
        Replica(
            public_id=f"rpl-{i}",
            pool=pools[i % 200],
            url=f"http://10.0.0.1:{10_000 + i}",
            state=State.READY,
            state_since=timezone.now(),
        )
        for i in range(2000)
    )
    routing.publication()  # its one row is made at the first look
    client = signed_in()
    with django_assert_max_num_queries(20):
        page = client.get("/pools/").content.decode()
    assert "page 1 of 4" in page
    with django_assert_max_num_queries(20):
        client.get("/")


def test_filters_live_in_the_address_and_none_is_not_empty():
    make_pool("alpha")
    page = signed_in().get("/pools/?q=beta").content.decode()
    assert "No pool matches." in page
    assert "There are no pools" not in page


def test_an_empty_list_says_what_it_is_and_how_to_begin():
    page = signed_in().get("/pools/").content.decode()
    assert "There are no pools" in page
    assert "curl -X POST" in page
    looks_only = signed_in("viewer").get("/pools/").content.decode()
    assert "Your role looks only" in looks_only
    assert "curl -X POST" not in looks_only


def test_csv_keeps_formulas_from_a_spreadsheet():
    make_node(zone="=1+1")
    body = signed_in().get("/nodes/?csv=1").content.decode()
    assert "'=1+1" in body


# --- A change of policy: form, review, change ---


def form_of(client: Client, **changes):
    page = client.get("/pools/chat/edit/")
    form = page.context["form"]
    data = {name: form.get_initial_for_field(f, name) or "" for name, f in form.fields.items()}
    version = {"expected_version": page.context["version"]}
    return data | version | {"step": "review"} | changes


@pytest.fixture
def editor():
    make_pool()
    return signed_in()


def test_a_policy_change_is_shown_before_and_after_first(editor):
    answer = editor.post("/pools/chat/edit/", form_of(editor, **{"setting-policy": "round_robin"}))
    page = answer.content.decode()
    assert "expected_ttft" in page
    assert "round_robin" in page
    assert Pool.objects.get().settings == {}


def test_a_policy_change_needs_a_reason(editor):
    data = form_of(editor, **{"setting-policy": "round_robin"}, step="apply", reason=" ")
    page = editor.post("/pools/chat/edit/", data).content.decode()
    assert "Say why" in page
    assert Pool.objects.get().settings == {}


def test_a_confirmed_policy_change_is_stored_and_recorded(editor):
    data = form_of(editor, **{"setting-max_retries": "3"}, step="apply", reason="flaky engines")
    answer = editor.post("/pools/chat/edit/", data)
    assert answer["Location"] == "/pools/chat/"
    assert Pool.objects.get().settings == {"max_retries": 3}
    assert AuditEvent.objects.first().reason == "flaky engines"


def test_a_policy_changed_meanwhile_is_refused_with_409(editor):
    data = form_of(editor, **{"setting-max_retries": "3"}, step="apply", reason="x")
    Pool.objects.update(version=7)
    answer = editor.post("/pools/chat/edit/", data)
    assert answer.status_code == 409
    assert Pool.objects.get().settings == {}


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("setting-max_retries", "99"),
        ("setting-ttft_limit_s", "soon"),
        ("setting-ttft_limit_s", "nan"),
        ("setting-kv_soft_usage", "0.99"),
        ("setting-extra_paths", "/v1/load_lora_adapter"),
    ],
)
def test_a_setting_out_of_range_is_refused_at_its_field(editor, field, typed):
    answer = editor.post("/pools/chat/edit/", form_of(editor, **{field: typed}))
    assert field in answer.context["form"].errors or answer.context["form"].non_field_errors()
    assert b"Nothing was changed" in answer.content


def test_no_change_is_no_change(editor):
    answer = editor.post("/pools/chat/edit/", form_of(editor))
    assert b"Nothing differs" in answer.content


def test_why_a_replica_is_out_is_told_once(replica, monkeypatch):
    why = "connection refused by 127.0.0.1:1; its process is gone"
    Replica.objects.filter(pk=replica.pk).update(
        state=State.EJECTED, state_reason=f"unhealthy for every agent that sees it: {why}"
    )
    now = live.ReplicaNow(
        age_s=1.0, agents=2, unhealthy=2, health_reason=why, scrape_error="connection refused"
    )
    monkeypatch.setattr(rows.live, "replicas", lambda reports: {replica.public_id: now})
    client = signed_in("viewer")
    page = client.get("/pools/chat/").content.decode()
    assert page.count("connection refused") == 1
    other = replace(now, health_reason="3 probes failed")
    monkeypatch.setattr(rows.live, "replicas", lambda reports: {replica.public_id: other})
    page = client.get("/pools/chat/").content.decode()
    assert "Unhealthy for 2 of 2 agents: 3 probes failed" in page
