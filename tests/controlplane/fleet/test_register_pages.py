"""A fleet is started in the console: a version, a pool, a replica, each by one form."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.catalog.models import Model, ModelVersion
from controlplane.fleet.models import Pool, Replica
from tests.controlplane.staff import signed_in

pytestmark = pytest.mark.django_db

VERSION = {"model": "m/7b", "kind": "chat", "name": "v1", "engine": "vllm", "dtype": "bf16"}
POOL = {"slug": "chat", "overload_policy": "queue"}
REPLICA = {"pool": "chat", "url": "http://127.0.0.1:9999", "engine": "vllm"}
WHY = {"reason": "first steps"}


def test_a_newcomer_is_led_from_nothing_to_a_replica():
    client = signed_in("operator")
    assert "/register/version/" in client.get("/").content.decode()
    client.post("/register/version/", VERSION | WHY)
    version = ModelVersion.objects.get(model__name="m/7b")
    assert "/register/pool/" in client.get("/").content.decode()
    made = client.post("/register/pool/", POOL | WHY | {"version": version.pk})
    assert made.headers["Location"] == "/pools/chat/"
    page = client.get("/pools/chat/").content.decode()
    assert "/register/replica/?pool=chat" in page
    assert "http://HOST:PORT" in page
    asked = client.get("/register/replica/?pool=chat").content.decode()
    assert '<option value="chat" selected>' in asked
    assert 'href="/pools/chat/"' in asked
    made = client.post("/register/replica/?pool=chat", REPLICA | WHY)
    replica = Replica.objects.get()
    assert made.headers["Location"] == f"/replicas/{replica.public_id}/"
    assert AuditEvent.objects.filter(reason="first steps").count() >= 4


def test_a_further_version_keeps_the_model_and_a_refusal_stands_at_its_field():
    client = signed_in("operator")
    client.post("/register/version/", VERSION | WHY)
    client.post("/register/version/", VERSION | WHY | {"name": "v2", "kind": "embedding"})
    assert Model.objects.get().kind == "chat"
    assert ModelVersion.objects.count() == 2
    again = client.post("/register/version/", VERSION | WHY).content.decode()
    assert "has a version" in again
    bad = client.post("/register/version/", VERSION | WHY | {"model": "new", "parameters": "-1"})
    assert "greater than or equal to 1" in bad.content.decode()
    assert not Model.objects.filter(name="new").exists()
    version = ModelVersion.objects.first()
    given = POOL | WHY | {"version": version.pk, "slug": "No Slug"}
    assert "errorlist" in client.post("/register/pool/", given).content.decode()
    assert not Pool.objects.exists()


def test_who_may_only_look_is_offered_nothing_and_refused():
    client = signed_in("viewer")
    for path in ("version", "pool", "replica"):
        assert client.get(f"/register/{path}/").status_code == 403
    assert "/register/" not in client.get("/").content.decode()
    assert "/register/" not in client.get("/versions/").content.decode()
