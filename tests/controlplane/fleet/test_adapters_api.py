"""Adapters through the API: staff, tenants' tokens, and who sees what."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from controlplane.audit.models import AuditEvent
from controlplane.catalog import uploads
from controlplane.catalog.models import Adapter, AdapterVersion
from tests import adapters as made
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.routing.conftest import at_once
from tests.controlplane.staff import user
from tests.controlplane.tenants.members import MEMBER, tenants_robot
from tests.factories import make_pool, make_replica, make_tenant

pytestmark = pytest.mark.django_db
PATH = "/api/v1/adapters/"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def _world(settings, tmp_path: Path):
    settings.ADAPTER_DIR = tmp_path / "adapters"
    make_replica(make_pool("chat"))
    make_tenant("acme")
    make_tenant("globex")


def acme():
    return make_tenant_object("acme")


def make_tenant_object(slug: str):
    from controlplane.tenants.models import Tenant

    return Tenant.objects.get(slug=slug)


def form(name: str = "sql", fill: int = 0, files: dict[str, bytes] | None = None, **given):
    sent = files or {CONFIG: made.config_bytes(), WEIGHTS: made.weights(fill=fill)}
    parts = {f"file-{n}": SimpleUploadedFile(file, content) for n, (file, content)
             in enumerate(sent.items())}  # fmt: skip
    return {"tenant": "acme", "name": name, "model": "m"} | given | parts


def test_staff_upload_for_a_tenant_and_see_where_it_is():
    shown = ok(caller("operator").post(PATH, form(reason="asked for")), 201)
    assert (shown["tenant"], shown["name"], shown["model"]) == ("acme", "sql", "m")
    assert shown["progress"] == {
        "code": "unplaced",
        "loaded": 0,
        "wanted": 0,
        "said": "it is registered without its node, whose agent would load adapters into it",
    }
    assert len(shown["missing"]) == 1
    assert shown["versions"][0]["rank"] == 8
    assert shown["change"]["fleet_revision"]
    assert AuditEvent.objects.get(verb="adapter.upload").reason == "asked for"
    assert ok(caller("viewer").get(PATH))["results"][0]["id"] == shown["id"]
    assert ok(caller("viewer", "v2").get(f"{PATH}{shown['id']}/"))["name"] == "sql"


def test_an_archive_is_one_part():
    packed = made.zipped({CONFIG: made.config_bytes(), WEIGHTS: made.weights()})
    assert ok(caller().post(PATH, form(files={"sql.zip": packed})), 201)["name"] == "sql"


def test_viewers_do_not_upload_and_strangers_see_nothing():
    problem(caller("viewer").post(PATH, form()), 403, "forbidden")
    from rest_framework.test import APIClient

    assert APIClient().post(PATH, form()).status_code == 401
    assert Adapter.objects.count() == 0


def test_a_refusal_names_the_field_and_lists_the_checks():
    files = {CONFIG: made.config_bytes(r=65), WEIGHTS: made.weights()}
    error = problem(caller().post(PATH, form(files=files)), 400, "adapter_rejected")
    assert error["field"] == "r"
    assert {c["check"]: c["passed"] for c in error["details"]["checks"]}["Rank"] is False


@pytest.mark.parametrize(
    "name", ["../../x", "/abs/x", "C:\\x", "..\\..\\x", "a/../../x", "adapter_model.bin"]
)
def test_names_of_parts_are_judged_as_they_were_sent(name):
    body = [
        b"--X",
        b'Content-Disposition: form-data; name="file"; filename="%s"' % name.encode(),
        b"Content-Type: application/octet-stream",
        b"",
        b"x",
        b"--X--",
        b"",
    ]
    answer = caller().generic(
        "POST", PATH, b"\r\n".join(body), content_type="multipart/form-data; boundary=X"
    )
    error = problem(answer, 400, "adapter_rejected")
    assert name.replace("\\", "\\\\") in error["message"]
    assert not uploads.folder_of("x").parent.exists()


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 400),
        (b"no form", "multipart/form-data; boundary=X", 400),
        (b"x", "multipart/form-data", 400),
        (b"x", "text/plain", 415),
        (b"--X--\r\n", "multipart/form-data; boundary=X", 400),
    ],
)
def test_a_body_that_is_no_upload_is_refused(body, kind, status):
    assert caller().generic("POST", PATH, body, content_type=kind).status_code == status


def test_more_than_the_limit_is_413_and_nothing_stays(settings, tmp_path):
    settings.ADAPTER_LIMIT_BYTES = 1000
    problem(caller().post(PATH, form()), 413, "too_large")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("name", "status"),
    [("m", 409), ("", 400), ("..", 400), ("a/b", 400), ("x" * 256, 400), ("a\nb", 400),
     ("a\x00b", 400), (" x ", 400), ("\N{SNAKE}", 400)],
)  # fmt: skip
def test_names_that_clash_are_409_and_illegal_ones_400(name, status):
    answer = caller().post(PATH, form(name=name))
    assert answer.status_code == status, answer.content
    assert answer.json()["error"]["field"] == "name"


def test_another_letter_case_is_409_and_another_tenant_is_free():
    client = caller()
    ok(client.post(PATH, form()), 201)
    problem(client.post(PATH, form(name="SQL", fill=1)), 409, "conflict")
    ok(client.post(PATH, form(tenant="globex")), 201)
    assert AdapterVersion.objects.values("served_name").distinct().count() == 2


def test_the_same_key_with_the_same_upload_acts_once():
    client = caller()
    first = client.post(PATH, form(), HTTP_IDEMPOTENCY_KEY="k1")
    again = client.post(PATH, form(), HTTP_IDEMPOTENCY_KEY="k1")
    assert (ok(first, 201)["id"], again["Idempotency-Replayed"]) == (ok(again, 201)["id"], "true")
    problem(client.post(PATH, form(), HTTP_IDEMPOTENCY_KEY="k2"), 409, "exists")


def test_a_tenants_token_uploads_for_its_own_tenant_only():
    robot = tenants_robot(acme(), MEMBER)
    body = form()
    del body["tenant"]
    assert ok(robot.post(PATH, body), 201)["tenant"] == "acme"
    problem(robot.post(PATH, form(tenant="globex")), 404, "not_found")
    assert Adapter.objects.count() == 1


def test_members_neither_share_nor_delete_and_only_staff_pin():
    made_id = ok(caller().post(PATH, form()), 201)["id"]
    member, admin = tenants_robot(acme(), MEMBER), tenants_robot(acme())
    path = f"{PATH}{made_id}/"
    assert member.patch(path, {"shared_with": ["globex"]}, format="json").status_code == 403
    assert member.delete(path).status_code == 403
    assert admin.patch(path, {"pinned": True}, format="json").status_code == 403
    shown = ok(admin.patch(path, {"shared_with": ["globex"]}, format="json"))
    assert shown["shared_with"] == ["globex"]
    assert ok(caller("operator").patch(path, {"pinned": True}, format="json"))["pinned"] is True
    assert admin.delete(path).status_code == 204


def test_a_tenant_sees_what_is_shared_with_it_and_cannot_change_it():
    shared = ok(caller().post(PATH, form()), 201)["id"]
    ok(caller("admin", "a2").post(PATH, form("hidden", fill=1)), 201)
    make_tenant("other")
    ok(caller("admin", "a3").patch(f"{PATH}{shared}/", {"shared_with": ["globex", "other"]},
                                   format="json"))  # fmt: skip
    guest = tenants_robot(make_tenant_object("globex"))
    (shown,) = ok(guest.get(PATH))["results"]
    assert (shown["tenant"], shown["name"], shown["shared_with"]) == ("acme", "sql", ["globex"])
    assert guest.delete(f"{PATH}{shared}/").status_code == 403
    hidden = Adapter.objects.get(name="hidden").public_id
    problem(guest.get(f"{PATH}{hidden}/"), 404, "not_found")
    assert ok(guest.get(f"{PATH}?tenant=acme&search=hid"))["count"] == 0


def test_a_deleted_adapter_is_shown_as_such_until_it_is_gone():
    client = caller()
    path = f"{PATH}{ok(client.post(PATH, form()), 201)['id']}/"
    assert client.delete(path, {"reason": "old"}, format="json").status_code == 204
    shown = ok(client.get(path))
    assert (shown["progress"]["code"], bool(shown["deleted_at"])) == ("deleting", True)
    problem(client.delete(path), 404, "not_found")


@pytest.mark.django_db(transaction=True)
def test_twenty_identical_uploads_at_once_make_one_adapter():
    clients = [caller("admin", f"ci-{n}") for n in range(20)]
    answers = at_once([lambda c=c: c.post(PATH, form()) for c in clients])
    statuses = sorted(a.status_code for a in answers)
    assert statuses == [201] + [409] * 19, [a.content for a in answers][:3]
    assert all(a.headers["Content-Type"] == "application/json" for a in answers)
    assert (Adapter.objects.count(), AdapterVersion.objects.count()) == (1, 1)
    assert AuditEvent.objects.filter(verb="adapter.upload").count() == 1


def test_a_signed_in_operator_uploads_with_the_token_against_forgery_only():
    client = Client(enforce_csrf_checks=True)
    client.force_login(user("operator"))
    client.get("/profile/")
    assert client.post(PATH, form()).status_code == 403
    token = client.cookies["csrftoken"].value
    answer = client.post(PATH, form(), headers={"X-CSRFToken": token})
    assert ok(answer, 201)["created_by"] == "a-operator"
