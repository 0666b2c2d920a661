"""What all writes share: dry runs, locking, idempotency, and what became of the change."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from controlplane.api.models import IdempotentAnswer
from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.catalog.models import Model
from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.calling import caller, model, ok, pool, problem, replica

pytestmark = pytest.mark.django_db


def test_a_write_says_which_revision_it_made_and_who_has_seen_it():
    made = caller().post("/api/v1/tenants/", {"slug": "acme"}, format="json")
    change = ok(made, 201)["change"]
    assert change["fleet_revision"] == fleet_revision()
    assert change["observed"] == {"n": 0, "m": 0, "agents_behind": [], "silent": []}
    assert AuditEvent.objects.get(pk=change["audit_event"]).verb == "tenant.create"
    assert made["x-signalbox-revision"] == str(fleet_revision())


def test_a_write_that_no_table_shows_has_no_revision():
    model()
    body = {"model": "chat", "name": "v2"}
    made = ok(caller().post("/api/v1/model-versions/", body, format="json"), 201)
    assert made["change"]["fleet_revision"] is None
    assert made["change"]["observed"] is None


def test_a_dry_run_shows_what_would_be_and_changes_nothing():
    client = caller()
    shown = ok(client.post("/api/v1/tenants/?dry_run=true", {"slug": "acme"}, format="json"))
    assert shown["slug"] == "acme"
    assert shown["change"] == {
        "audit_event": None,
        "fleet_revision": None,
        "observed": None,
        "dry_run": True,
    }
    assert not Tenant.objects.exists()
    assert fleet_revision() == 0


def test_a_dry_run_is_refused_where_the_write_would_be():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    problem(
        client.post("/api/v1/tenants/?dry_run=1", {"slug": "acme"}, format="json"), 409, "conflict"
    )
    error = problem(
        client.post("/api/v1/tenants/?dry_run=maybe", {"slug": "b"}, format="json"), 400, "invalid"
    )
    assert error["field"] == "dry_run"


@pytest.mark.django_db(transaction=True)
def test_no_verb_of_the_fleet_minds_a_dry_run():
    model()
    pool()
    row = replica()
    client = caller()
    for method, path, body in (
        ("post", "nodes", {"name": "n1"}),
        (
            "post",
            "pools",
            {"slug": "b", "model": "chat", "model_version": "v1", "overload_policy": "queue"},
        ),
        ("patch", "pools/chat-a", {"description": "x"}),
        ("put", "pools/chat-a/splits", {"weights": {"chat-a": 100}}),
        ("post", "replicas", {"pool": "chat-a", "url": "http://127.0.0.1:9"}),
        ("patch", f"replicas/{row}", {"weight": 2.0}),
        ("post", f"replicas/{row}/drain", {}),
    ):
        answer = getattr(client, method)(f"/api/v1/{path}/?dry_run=true", body, format="json")
        assert ok(answer)["change"]["dry_run"], path
    assert AuditEvent.objects.exclude(actor="tests").count() == 0


def test_a_removal_can_be_tried():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    assert ok(client.delete("/api/v1/tenants/acme/?dry_run=true"))["change"]["dry_run"]
    assert Tenant.objects.exists()


def test_a_removal_tells_its_revision_in_a_header_and_keeps_its_reason():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    gone = client.delete("/api/v1/tenants/acme/?reason=left")
    assert gone.status_code == 204
    assert not gone.content
    assert gone["x-signalbox-revision"] == str(fleet_revision())
    assert AuditEvent.objects.get(verb="tenant.delete").reason == "left"


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_change_from_an_older_version_moved_meanwhile(where):
    client = caller()
    ok(client.post("/api/v1/models/", {"name": "chat"}, format="json"), 201)
    seen = client.get("/api/v1/models/chat/")["ETag"]
    assert seen == '"1"'
    first = client.patch(
        "/api/v1/models/chat/", {"description": "a"}, format="json", HTTP_IF_MATCH=seen
    )
    assert first["ETag"] == '"2"'
    body = {"description": "b"} | ({"version": 1} if where == "body" else {})
    headers = {"HTTP_IF_MATCH": seen} if where == "header" else {}
    late = client.patch("/api/v1/models/chat/", body, format="json", **headers)
    assert "look again" in problem(late, 409, "stale_version")["message"]
    assert Model.objects.get().description == "a"


def test_a_removal_obeys_the_version_too():
    client = caller()
    ok(client.post("/api/v1/models/", {"name": "chat"}, format="json"), 201)
    problem(client.delete("/api/v1/models/chat/", HTTP_IF_MATCH='"7"'), 409, "stale_version")
    assert client.delete("/api/v1/models/chat/", HTTP_IF_MATCH='W/"1"').status_code == 204


def test_an_if_match_that_is_no_version_is_refused():
    client = caller()
    ok(client.post("/api/v1/models/", {"name": "chat"}, format="json"), 201)
    answer = client.patch("/api/v1/models/chat/", {}, format="json", HTTP_IF_MATCH='"abc"')
    assert problem(answer, 400, "invalid")["field"] == "If-Match"


def test_the_same_key_acts_once_and_gets_the_same_answer():
    client = caller()
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    first = client.post("/api/v1/models/", {"name": "chat", "aliases": ["a"]}, **send)
    again = client.post("/api/v1/models/", {"aliases": ["a"], "name": "chat"}, **send)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again["Idempotency-Replayed"] == "true"
    assert again["x-signalbox-revision"] == first["x-signalbox-revision"]
    assert "Idempotency-Replayed" not in first
    assert AuditEvent.objects.filter(verb="model.create").count() == 1


def test_the_same_key_for_another_request_is_refused():
    client = caller()
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    ok(client.post("/api/v1/models/", {"name": "a"}, **send), 201)
    problem(client.post("/api/v1/models/", {"name": "b"}, **send), 409, "idempotency_key_reused")
    problem(client.post("/api/v1/tenants/", {"slug": "a"}, **send), 409, "idempotency_key_reused")


def test_keys_of_two_callers_never_meet():
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    ok(caller("admin").post("/api/v1/models/", {"name": "a"}, **send), 201)
    ok(caller("operator").post("/api/v1/models/", {"name": "b"}, **send), 201)


def test_an_error_is_not_kept_so_a_repeat_tries_again():
    client = caller()
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    body = {"model": "chat", "name": "v1"}
    problem(client.post("/api/v1/model-versions/", body, **send), 404, "not_found")
    assert not IdempotentAnswer.objects.exists()
    ok(client.post("/api/v1/models/", {"name": "chat"}, format="json"), 201)
    ok(client.post("/api/v1/model-versions/", body, **send), 201)


def test_a_repeated_removal_answers_as_the_first():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    for _ in range(2):
        assert client.delete("/api/v1/tenants/acme/", HTTP_IDEMPOTENCY_KEY="k2").status_code == 204


def test_a_secret_is_shown_once_and_stored_in_no_answer():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    body = {"tenant": "acme", "name": "prod"}
    first = ok(client.post("/api/v1/api-keys/", body, **send), 201)
    again = ok(client.post("/api/v1/api-keys/", body, **send), 201)
    assert first["plaintext"].startswith("sbx-")
    assert again == {**first, "plaintext": None}
    assert first["plaintext"] not in str(list(IdempotentAnswer.objects.values()))
    assert ApiKey.objects.count() == 1


def test_a_dry_run_shows_no_secret_and_keeps_no_answer():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    body = {"tenant": "acme", "name": "prod"}
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    assert ok(client.post("/api/v1/api-keys/?dry_run=true", body, **send))["plaintext"] is None
    assert not IdempotentAnswer.objects.exists()


def test_answers_are_forgotten_after_a_day():
    client = caller()
    send = {"format": "json", "HTTP_IDEMPOTENCY_KEY": "k1"}
    ok(client.post("/api/v1/models/", {"name": "a"}, **send), 201)
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    problem(client.post("/api/v1/models/", {"name": "a"}, **send), 409, "conflict")


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_key_of_no_use_is_refused(key):
    answer = caller().post(
        "/api/v1/models/", {"name": "a"}, format="json", HTTP_IDEMPOTENCY_KEY=key
    )
    assert problem(answer, 400, "invalid")["field"] == "Idempotency-Key"


@pytest.mark.django_db(transaction=True)
def test_the_wake_comes_after_the_commit_and_never_in_a_dry_run(monkeypatch):
    woken = []

    def note(task, *args):
        woken.append((task, transaction.get_connection().in_atomic_block))
        return True

    monkeypatch.setattr("controlplane.wake.wake", note)
    client = caller()
    ok(client.post("/api/v1/tenants/?dry_run=true", {"slug": "a"}, format="json"))
    assert woken == []
    ok(client.post("/api/v1/tenants/", {"slug": "a"}, format="json", HTTP_IDEMPOTENCY_KEY="k"), 201)
    assert woken == [("routing.publish", False)]


def test_paths_work_without_their_last_slash():
    client = caller()
    ok(client.post("/api/v1/models", {"name": "org/m:x"}, format="json"), 201)
    assert ok(client.get("/api/v1/models/org/m:x"))["name"] == "org/m:x"
    assert client.delete("/api/v1/models/org/m:x").status_code == 204
