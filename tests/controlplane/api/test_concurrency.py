"""Simultaneous writes: one wins where one must, none is lost where all may."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections

from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.catalog import services as catalog
from controlplane.catalog.models import Model
from controlplane.fleet.models import Pool, TrafficSplit
from controlplane.tenants.models import ApiKey
from tests.controlplane.calling import WHY, bearing, caller, model, ok, pool
from tests.factories import make_replica

pytestmark = [pytest.mark.django_db(transaction=True)]


def at_once(calls):
    """Run all calls in threads that start together, and give their answers."""
    gate = Barrier(len(calls))

    def run(call):
        try:
            gate.wait(timeout=30)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool_of_threads:
        return list(pool_of_threads.map(run, calls))


def token() -> str:
    client = caller("admin")
    made = client.post("/api/v1/staff-tokens/", {"name": "t", "role": "admin"}, format="json")
    return ok(made, 201)["plaintext"]


def post(text: str, path: str, body: dict, **headers):
    return lambda: bearing(text).post(f"/api/v1/{path}/", body, format="json", **headers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "pools",
            {"slug": "b", "model": "chat", "model_version": "v1", "overload_policy": "queue"},
        ),
        ("api-keys", {"tenant": "acme", "name": "prod"}),
        ("models", {"name": "new"}),
        ("replicas", {"pool": "chat-a", "url": "http://127.0.0.1:9001"}),
    ],
)
def test_of_twenty_identical_creations_one_succeeds(path, body):
    model()
    pool()
    text = token()
    ok(bearing(text).post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    before = fleet_revision()
    answers = at_once([post(text, path, body) for _ in range(20)])
    assert Counter(a.status_code for a in answers) == {201: 1, 409: 19}
    assert all("error" in a.json() for a in answers if a.status_code == 409)
    assert fleet_revision() == before + 1


OTHER_NOUNS = (
    ("tenants", {"slug": "new-one"}),
    ("memberships", {"tenant": "acme", "username": "ada", "role": "tenant_member"}),
    ("tenant-tokens", {"tenant": "acme", "name": "ci"}),
    ("staff-tokens", {"name": "ci", "role": "viewer"}),
    ("nodes", {"name": "node-9"}),
    ("model-versions", {"model": "chat", "name": "v9"}),
    ("rollouts", {"stable_pool": "chat-a", "canary_pool": "chat-b"}),
    ("scaling-policies", {"pool": "chat-a", "program": "simulated"}),
    ("webhooks", {"name": "pager", "url": "https://pager.example/hook"}),
)


def test_of_identical_creations_of_any_other_noun_one_succeeds_too():
    model()
    catalog.create_version(model="chat", name="v2", **WHY)
    pool()
    pool("chat-b", version="v2")
    for row in Pool.objects.all():
        make_replica(row)
    text = token()
    ok(bearing(text).post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    weights = {"weights": {"chat-a": 100}}
    ok(bearing(text).patch("/api/v1/pools/chat-a/splits/", weights, format="json"))
    for path, body in OTHER_NOUNS:
        answers = at_once([post(text, path, body | {"reason": "a test"}) for _ in range(5)])
        found = sorted(a.status_code for a in answers)
        assert found == [201] + [409] * 4, (path, [a.content for a in answers])


def test_twenty_repeats_of_one_key_are_one_act_with_one_answer():
    text = token()
    ok(bearing(text).post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    body = {"tenant": "acme", "name": "prod"}
    answers = at_once([post(text, "api-keys", body, HTTP_IDEMPOTENCY_KEY="k") for _ in range(20)])
    assert {a.status_code for a in answers} == {201}
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum(a.json()["plaintext"] is not None for a in answers) == 1
    assert ApiKey.objects.count() == 1


def test_a_hundred_changes_are_a_hundred_revisions():
    model()
    pool()
    text = token()
    before = fleet_revision()
    answers = at_once([post(text, "models", {"name": f"m{i}"}) for i in range(100)])
    assert {a.status_code for a in answers} == {201}
    revisions = {a.json()["change"]["fleet_revision"] for a in answers}
    assert revisions == set(range(before + 1, before + 101))


def test_different_settings_of_one_pool_set_at_once_are_all_kept():
    model()
    pool()
    text = token()
    names = ["max_retries", "probe_failures", "breaker_failures", "probe_recoveries"]
    answers = at_once(
        [
            lambda name=name: bearing(text).patch(
                "/api/v1/pools/chat-a/", {"settings": {name: 4}}, format="json"
            )
            for name in names
        ]
    )
    assert {a.status_code for a in answers} == {200}
    assert Pool.objects.get().settings == dict.fromkeys(names, 4)


def test_weights_of_two_pools_set_at_once_are_both_kept():
    model()
    text = token()
    for slug in "abcd":
        pool(slug)
    answers = at_once(
        [
            lambda slug=slug: bearing(text).patch(
                f"/api/v1/pools/{slug}/splits/", {"weights": {slug: 7}}, format="json"
            )
            for slug in "abcd"
        ]
    )
    assert {a.status_code for a in answers} == {200}
    assert dict(TrafficSplit.objects.values_list("pool__slug", "weight")) == dict.fromkeys(
        "abcd", 7
    )


def test_of_ten_edits_from_one_version_one_succeeds():
    model()
    text = token()
    answers = at_once(
        [
            lambda i=i: bearing(text).patch(
                "/api/v1/models/chat/", {"description": str(i), "version": 1}, format="json"
            )
            for i in range(10)
        ]
    )
    assert Counter(a.status_code for a in answers) == {200: 1, 409: 9}
    assert Model.objects.get().version == 2
    assert AuditEvent.objects.filter(verb="model.update").count() == 1
