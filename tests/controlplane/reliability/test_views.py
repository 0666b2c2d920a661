"""The pages of promises, alerts and diagnosis, as people with different roles see them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.overview import views as overview
from controlplane.reliability import services
from controlplane.reliability.models import (
    Alert,
    AlertRun,
    MaintenanceWindow,
    Silence,
    Webhook,
    WebhookDelivery,
)
from tests.controlplane.reliability.test_api import alert
from tests.controlplane.staff import poll, signed_in
from tests.factories import WHY, make_pool, make_replica

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def pool():
    overview._problems.clear()
    made = make_pool("chat")
    make_replica(made)
    return made


def page(path: str, role: str = "operator") -> str:
    answer = signed_in(role).get(path)
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def judged() -> None:
    AlertRun.objects.create(pk=1, at=timezone.now(), rules={})


def test_firing_alerts_come_first_with_their_figures_and_what_to_do():
    judged()
    alert()
    alert(rule="kv-high", state="pending", fired_at=None)
    alert(rule="errors-high", state="resolved", resolved_at=timezone.now(), note="was a driver")
    blind = timezone.now() - timedelta(minutes=20)
    alert(rule="queue-long", no_data_since=blind)
    shown = page("/alerts/")
    assert "stale" in shown
    assert "what is shown is of then" in shown
    assert shown.index("firing-title") < shown.index("TTFT P99 over 2 s")
    assert "8.90 s, over the limit of 2 s." in shown
    assert "/diagnosis/chat/?question=ttft&amp;alert=" in shown
    assert "was a driver" in shown
    assert "Acknowledge" in shown
    assert "Acknowledge" not in page_of_viewer()


def page_of_viewer() -> str:
    return page("/alerts/", "viewer")


def test_a_page_whose_rules_were_not_judged_lately_says_so():
    assert "Rules were not judged yet" in page("/alerts/")
    AlertRun.objects.create(pk=1, at=timezone.now() - timedelta(minutes=5), rules={})
    assert "not known" in page_of_viewer()


@pytest.mark.redis
def test_the_overview_does_not_say_all_well_while_an_alert_fires(telling):
    assert "all well" in page("/", "viewer")
    alert(rule="ttft-over-slo", severity="warning")
    overview._problems.clear()
    shown = page("/")
    assert "all well" not in shown
    assert "TTFT P99 over its objective: chat" in shown


@pytest.mark.redis
def test_the_overview_does_not_say_all_well_while_a_silenced_alert_fires(telling):
    alert()
    services.create_silence(pool="chat", ends_at=timezone.now() + timedelta(hours=1), **WHY)
    shown = page("/")
    assert "all well" not in shown
    assert "1 alert fires silenced" in shown


def test_what_the_overview_says_already_is_not_said_twice():
    alert(rule="replica-down", subject="rpl-x")
    assert "Replica is down: rpl-x" not in page("/")


def test_an_alert_is_acknowledged_with_a_note():
    made = alert()
    client = signed_in()
    refused = client.post(f"/alerts/{made.pk}/acknowledge/", {"reason": ""})
    assert refused.status_code == 400
    assert client.post(f"/alerts/{made.pk}/acknowledge/", {"reason": "mine"}).status_code == 302
    assert Alert.objects.get().note == "mine"
    assert "a-operator looks after it" in client.get("/").content.decode()


def test_what_a_higher_promise_forbids_is_not_asked_for():
    judged()
    alert(rule="gpu-low", severity="warning")
    assert "Fewer replicas would do" in page_of_viewer()
    alert()
    shown = page("/alerts/")
    assert "Fewer replicas would do" not in shown
    assert "Not now: “TTFT P99 over 2 s” fires on the same pool" in shown


def test_a_silence_is_made_from_an_alert_and_ended():
    client = signed_in()
    asked = client.get("/alerts/silences/?rule=ttft-high&pool=chat").content.decode()
    assert '<option value="ttft-high" selected>' in asked
    given = {"rule": "ttft-high", "pool": "chat", "hours": "2", "reason": "load test"}
    assert client.post("/alerts/silences/", given).status_code == 302
    silence = Silence.objects.get()
    assert "load test" in client.get("/alerts/").content.decode()
    client.post(f"/alerts/silences/{silence.pk}/end/")
    assert Silence.objects.get().ends_at <= timezone.now()


def test_a_silence_for_everything_is_refused_beside_the_form():
    answer = signed_in().post("/alerts/silences/", {"hours": "2", "reason": "x"})
    assert "blindness" in answer.content.decode()
    assert not Silence.objects.exists()


def test_an_admin_adds_tests_and_removes_a_webhook_and_its_secret_is_shown_once():
    client = signed_in("admin")
    given = {"name": "ops", "url": "https://hooks.example/very-secret", "reason": "on call"}
    shown = client.post("/alerts/webhooks/", given)
    assert shown["Cache-Control"] == "no-store"
    secret = Webhook.objects.get().secret
    assert secret in shown.content.decode()
    listed = client.get("/alerts/").content.decode()
    assert "https://hooks.example" in listed
    assert "very-secret" not in listed
    assert secret not in listed
    client.post("/alerts/webhooks/ops/test/")
    assert WebhookDelivery.objects.get().event == "test"
    assert "about to be sent" in client.get("/alerts/").content.decode()
    client.post("/alerts/webhooks/ops/delete/", {"reason": "gone"})
    assert not Webhook.objects.exists()
    bad = client.post("/alerts/webhooks/", given | {"url": "ftp://x/"})
    assert "must be http" in bad.content.decode()


def test_an_operator_adds_no_webhook():
    assert signed_in().get("/alerts/webhooks/").status_code == 403


def test_promises_are_shown_with_their_budget_and_changed():
    shown = page("/slos/", "viewer")
    assert "default promises" in shown
    assert re.search(r"4[0-4]\.\d", shown)  # 0.1 % of a month of 28 to 31 days
    assert "no data" in shown
    client = signed_in()
    form = client.get("/slos/chat/edit/").content.decode()
    assert 'value="99.9"' in form
    assert 'value="33.3"' in form
    given = {
        "availability_percent": "99.5", "ttft_p99_ms": "1500", "tpot_p99_ms": "33.3",
        "error_percent": "0.5", "owner": "ml", "review_on": "2026-01-31", "reason": "agreed",
    }  # fmt: skip
    assert client.post("/slos/chat/edit/", given).status_code == 302
    shown = client.get("/slos/").content.decode()
    assert "99.5 %" in shown
    assert "review is due since" in shown
    assert AuditEvent.objects.get(verb="slo.set").reason == "agreed"
    wrong = client.post("/slos/chat/edit/", given | {"availability_percent": "100"})
    assert "99.999" in wrong.content.decode()


def test_an_exhausted_budget_is_said_with_its_bar(minute):
    now = timezone.now()
    for i in range(50):
        minute(at=now - timedelta(minutes=3 + i), statuses={"500": 10})
    services.book_budgets(now)
    shown = page("/slos/")
    assert "risky changes are frozen" in shown or "minutes are spent" in shown
    assert "<meter" in shown


def test_maintenance_is_declared_and_ended():
    client = signed_in()
    assert "Begins" in client.get("/slos/maintenance/?pool=chat").content.decode()
    begin = f"{timezone.now():%Y-%m-%dT%H:%M}"
    given = {
        "pool": "", "kind": "maintenance", "starts_at": begin, "hours": "2", "reason": "new driver"
    }  # fmt: skip
    assert client.post("/slos/maintenance/", given).status_code == 302
    window = MaintenanceWindow.objects.get()
    assert "new driver" in client.get("/slos/").content.decode()
    client.post(f"/slos/maintenance/{window.pk}/close/")
    assert not MaintenanceWindow.objects.filter(ends_at__gt=timezone.now()).exists()


def test_a_diagnosis_without_data_says_so_and_asks_only_what_it_knows():
    shown = page("/diagnosis/chat/")
    assert "## TTFT is up: chat" in shown  # to be copied
    assert "no cause found" in shown
    assert "no recent figures" in shown
    client = signed_in("admin")
    assert client.get("/diagnosis/chat/?question=why").status_code == 400
    assert client.get("/diagnosis/chat/?alert=x").status_code == 400
    assert client.get("/diagnosis/none/").status_code == 404
    for question in ("ttft", "gpu-low", "oom"):
        assert client.get(f"/diagnosis/chat/?question={question}").status_code == 200


@pytest.mark.parametrize("path", ["/alerts/", "/slos/", "/diagnosis/chat/"])
def test_live_parts_answer_204_when_nothing_changed(path):
    judged()
    client = signed_in("viewer")
    first = poll(client, path)
    assert first.status_code == 200
    if "diagnosis" not in path:  # that one tells its own time
        assert poll(client, path, first["X-Digest"]).status_code == 204


def test_names_and_reasons_are_text():
    alert(reason="<img src=x onerror=alert(1)>", note="<b>x</b>", acknowledged_by="<i>")
    services.create_silence(
        pool="chat", ends_at=timezone.now() + timedelta(hours=1), **(WHY | {"reason": "<script>"})
    )
    shown = page("/alerts/") + page_of_viewer()
    for tag in ("<img src=x", "<b>x</b>", "<i>", "<script>"):
        assert tag not in shown
