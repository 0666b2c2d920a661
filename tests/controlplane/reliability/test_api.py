"""Promises, alerts, silences and webhooks through the API."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.reliability.models import Alert, AlertRun
from tests.controlplane.calling import caller, ok, problem
from tests.factories import make_pool

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def pool():
    return make_pool("chat")


def later(**delta) -> str:
    return (timezone.now() + timedelta(**delta)).isoformat()


def alert(**given) -> Alert:
    now = timezone.now()
    defaults = {
        "rule": "ttft-high", "subject": "chat", "pool": "chat", "severity": "critical",
        "state": "firing", "since": now, "fired_at": now, "value": 8.9, "threshold": 2.0,
        "reason": "8.90 s, over the limit of 2 s.",
    }  # fmt: skip
    return Alert.objects.create(**(defaults | given))


def test_every_pool_has_the_default_promises_until_they_are_changed():
    client = caller("operator")
    body = ok(client.get("/api/v1/slos/chat/"))
    assert (body["availability_ratio"], body["ttft_p99_s"], body["version"]) == (0.999, 0.3, 0)
    assert body["budget"]["state"] == "no-data"
    assert body["frozen"] is None
    change = {"ttft_p99_s": 1.5, "owner": "ml", "review_on": "2027-01-31", "version": 0}
    changed = ok(client.patch("/api/v1/slos/chat/", change, format="json"))
    assert (changed["ttft_p99_s"], changed["owner"], changed["version"]) == (1.5, "ml", 1)
    assert changed["change"]["audit_event"]
    problem(client.patch("/api/v1/slos/chat/", change, format="json"), 409, "stale_version")
    assert client.delete("/api/v1/slos/chat/").status_code == 204
    assert ok(client.get("/api/v1/slos/"))["results"][0]["is_default"]


@pytest.mark.parametrize(
    "change",
    [{"availability_ratio": 1}, {"ttft_p99_s": 0}, {"error_ratio": "1"}, {"budget": {}}],
)
def test_promises_that_make_no_sense_are_refused(change):
    answer = caller("operator").patch("/api/v1/slos/chat/", change, format="json")
    problem(answer, 400, "invalid")


def test_a_dry_run_changes_no_promise():
    client = caller("operator")
    path = "/api/v1/slos/chat/?dry_run=true"
    shown = ok(client.patch(path, {"ttft_p99_s": 1.5}, format="json"))
    assert shown["ttft_p99_s"] == 1.5
    assert ok(client.get("/api/v1/slos/chat/"))["ttft_p99_s"] == 0.3


def test_a_viewer_reads_and_changes_nothing():
    client = caller("viewer")
    ok(client.get("/api/v1/slos/"))
    ok(client.get("/api/v1/alerts/"))
    problem(client.patch("/api/v1/slos/chat/", {}, format="json"), 403, "forbidden")
    body = {"rule": "kv-high", "ends_at": later(hours=1)}
    problem(client.post("/api/v1/silences/", body, format="json"), 403, "forbidden")
    problem(client.post("/api/v1/webhooks/", {}, format="json"), 403, "forbidden")


def test_a_maintenance_window_is_declared_and_closed():
    client = caller("operator")
    body = {"pool": "chat", "starts_at": later(minutes=-5), "ends_at": later(hours=1)}
    error = client.post("/api/v1/maintenance-windows/", body, format="json")
    assert problem(error, 400, "invalid")["field"] == "reason"
    body["reason"] = "new driver"
    made = ok(client.post("/api/v1/maintenance-windows/", body, format="json"), 201)
    closed = ok(client.post(f"/api/v1/maintenance-windows/{made['id']}/close/", {}, format="json"))
    assert closed["ends_at"] < made["ends_at"]
    ahead = {"starts_at": later(hours=1), "ends_at": later(hours=2), "reason": "all"}
    made = ok(client.post("/api/v1/maintenance-windows/", ahead, format="json"), 201)
    assert made["pool"] is None
    ok(client.post(f"/api/v1/maintenance-windows/{made['id']}/close/", {}, format="json"))
    assert ok(client.get("/api/v1/maintenance-windows/"))["count"] == 1


def test_alerts_are_listed_firing_first_and_acknowledged():
    alert(rule="kv-high", state="resolved", resolved_at=timezone.now())
    alert(rule="queue-long", state="pending", fired_at=None)
    firing = alert()
    client = caller("operator")
    listed = ok(client.get("/api/v1/alerts/"))["results"]
    assert [a["state"] for a in listed] == ["firing", "pending", "resolved"]
    assert listed[0]["title"] == "TTFT P99 over 2 s"
    path = f"/api/v1/alerts/{firing.pk}/acknowledge/"
    told = ok(client.post(path, {"reason": "on it"}, format="json"))
    assert (told["note"], told["acknowledged_by"]) == ("on it", "ci-operator")
    pending = Alert.objects.get(rule="queue-long")
    path = f"/api/v1/alerts/{pending.pk}/acknowledge/"
    problem(client.post(path, {}, format="json"), 409, "conflict")
    problem(client.post("/api/v1/alerts/999/acknowledge/", {}, format="json"), 404, "not_found")


def test_the_rules_say_how_their_subjects_stood_and_why_there_is_no_data():
    client = caller("viewer")
    before = ok(client.get("/api/v1/alerts/rules/"))
    assert before["judged_at"] is None
    assert before["rules"][0]["ok"] is None
    told = {"ok": 1, "pending": 0, "firing": 0, "no_data": 2, "missing": {"no engine tells": 2}}
    AlertRun.objects.create(pk=1, at=timezone.now(), rules={"kv-high": told})
    rules = {r["name"]: r for r in ok(client.get("/api/v1/alerts/rules/"))["rules"]}
    assert rules["kv-high"]["missing"] == {"no engine tells": 2}
    assert rules["ttft-over-slo"]["threshold"] is None


def test_a_silence_is_made_shown_on_its_alerts_and_ended():
    client = caller("operator")
    alert()
    body = {"rule": "ttft-high", "pool": "chat", "ends_at": later(hours=1), "reason": "load test"}
    made = ok(client.post("/api/v1/silences/", body, format="json"), 201)
    assert made["active"]
    assert ok(client.get("/api/v1/alerts/"))["results"][0]["silenced"] == made["id"]
    ended = ok(client.post(f"/api/v1/silences/{made['id']}/end/", {}, format="json"))
    assert not ended["active"]
    assert ok(client.get("/api/v1/alerts/"))["results"][0]["silenced"] is None


def test_a_webhooks_secret_is_shown_once_and_its_address_never():
    client = caller()
    body = {"name": "ops", "url": "https://hooks.example/T1/very-secret?x=1"}
    made = ok(client.post("/api/v1/webhooks/", body, format="json"), 201)
    assert made["plaintext"].startswith("sbw-")
    shown = client.get("/api/v1/webhooks/ops/")
    assert ok(shown)["host"] == "https://hooks.example"
    assert b"very-secret" not in shown.content
    assert made["plaintext"].encode() not in shown.content
    changed = ok(client.patch("/api/v1/webhooks/ops/", {"only_critical": True}, format="json"))
    assert (changed["only_critical"], changed["version"]) == (True, 2)
    ok(client.post("/api/v1/webhooks/ops/test/", {}, format="json"))
    sent = ok(client.get("/api/v1/webhook-deliveries/?webhook=ops"))["results"][0]
    assert (sent["event"], sent["outcome"]) == ("test", "waiting")
    assert client.delete("/api/v1/webhooks/ops/").status_code == 204


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://169.254.169.254/", "http://a:b@c/"])
def test_a_webhook_to_nowhere_good_is_refused_by_field(url):
    body = {"name": "ops", "url": url}
    answer = caller().post("/api/v1/webhooks/", body, format="json")
    assert problem(answer, 400, "invalid")["field"] == "url"
