"""Every error has one shape, and bad input is named."""

import json

import pytest
from django.db import DataError, OperationalError
from django.test import Client
from rest_framework import exceptions
from rest_framework.test import APIClient

from controlplane.api import errors
from controlplane.api.router import router
from tests.controlplane.calling import caller, model, ok, pool, problem

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]


def post(path, body, *, role="admin", **extra):
    return caller(role).post(f"/api/v1/{path}/", body, format="json", **extra)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("models", {"name": "chat", "color": "red"}, "color"),
        ("models", {"name": 5}, "name"),
        ("models", {"name": True}, "name"),
        ("models", {"name": None}, "name"),
        ("models", {}, "name"),
        ("models", {"name": "chat", "bytes_per_token": "4"}, "bytes_per_token"),
        ("models", {"name": "chat", "aliases": "x"}, "aliases"),
        ("models", {"name": "chat", "aliases": ["a", 1]}, "aliases"),
        ("models", {"name": "chat", "aliases": [None]}, "aliases"),
        ("models", {"name": "chat", "kind": "video"}, "kind"),
        ("models", {"name": "chat", "kind": 1}, "kind"),
        ("models", {"name": "a\u0000b"}, "name"),
        ("models", {"name": "chat", "created_at": "2027-01-01T00:00:00Z"}, "created_at"),
        ("tenants", {"slug": "acme", "priority": "5"}, "priority"),
        ("tenants", {"slug": "acme", "priority": 5.5}, "priority"),
        ("tenants", {"slug": "acme", "priority": True}, "priority"),
        ("tenants", {"slug": "acme", "priority": 10}, "priority"),
        ("tenants", {"slug": "acme", "suspended": "yes"}, "suspended"),
        ("tenants", {"slug": "acme", "suspended": 1}, "suspended"),
        ("api-keys", {"tenant": "acme", "name": "a", "expires_at": 5}, "expires_at"),
        ("api-keys", {"tenant": "acme", "name": "a", "expires_at": "soon"}, "expires_at"),
        ("model-versions", {"model": "chat", "name": "v", "layers": "32"}, "layers"),
        ("model-versions", {"model": "chat", "name": "v", "layers": 2**40}, "layers"),
        ("model-versions", {"model": "chat", "name": "v", "parameters": -1}, "parameters"),
        ("nodes", {"name": "n1", "gpus": [{"index": "0", "model": "H100"}]}, "gpus[0].index"),
        ("nodes", {"name": "n1", "gpus": [{"index": 0, "model": "H100", "x": 1}]}, "gpus[0].x"),
        ("nodes", {"name": "n1", "gpus": {}}, "gpus"),
        ("replicas", {"pool": "p", "url": "http://h:1", "weight": 0}, "weight"),
    ],
)
def test_input_that_is_wrong_is_refused_with_the_name_of_its_field(path, body, field):
    assert problem(post(path, body), 400, "invalid")["field"] == field


@pytest.mark.parametrize("body", ["[]", '"x"', "5", "null"])
def test_a_body_that_is_no_object_is_refused(body):
    answer = caller().post("/api/v1/models/", body, content_type="application/json")
    problem(answer, 400, "invalid")


@pytest.mark.parametrize(
    "body", ["{bad", "{'a': 1}", '{"name": NaN}', '{"name": Infinity}', "\xff"]
)
def test_json_that_is_none_is_refused(body):
    answer = caller().post(
        "/api/v1/models/", body.encode("latin-1"), content_type="application/json"
    )
    problem(answer, 400, "malformed_json")


def test_json_nested_without_end_is_refused():
    body = "[" * 100_000 + "]" * 100_000
    answer = caller().post("/api/v1/models/", body, content_type="application/json")
    problem(answer, 400, "malformed_json")


def test_a_body_without_end_is_refused():
    body = '{"name": "' + "x" * (4 * 2**20) + '"}'
    answer = caller().post("/api/v1/models/", body, content_type="application/json")
    problem(answer, 413, "too_large")


def test_another_content_type_is_refused():
    answer = caller().post("/api/v1/models/", "name=chat", content_type="text/plain")
    problem(answer, 415, "unsupported_media_type")


def test_another_method_is_refused():
    problem(caller().put("/api/v1/models/", {}, format="json"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing/", "/api/v2/pools/", "/api/v1/pools/none/", "/api/"]
)
def test_what_is_not_there_is_said_in_json(path):
    problem(caller().get(path), 404, "not_found")


def test_several_faults_are_all_told():
    error = problem(post("tenants", {"slug": "a", "priority": "x", "size": 1}), 400, "invalid")
    assert set(error["details"]) == {"priority", "size"}


def test_a_name_that_is_taken_conflicts():
    ok(post("models", {"name": "chat"}), 201)
    problem(
        caller("operator").post("/api/v1/models/", {"name": "chat"}, format="json"), 409, "conflict"
    )


def test_what_is_in_use_is_not_deleted_and_the_users_are_named():
    model()
    pool()
    error = problem(caller().delete("/api/v1/models/chat/"), 409, "in_use")
    assert "chat-a" in error["message"]


@pytest.mark.parametrize("size", ["0", "501", "-1", "x", "", "1.5", "٣"])
def test_a_page_size_out_of_bounds_is_refused(size):
    error = problem(caller("viewer").get("/api/v1/pools/", {"page_size": size}), 400, "invalid")
    assert error["field"] == "page_size"


def test_a_page_beyond_the_last_is_not_there():
    problem(caller("viewer").get("/api/v1/pools/?page=9"), 404, "not_found")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (exceptions.Throttled(wait=3), 429, "too_many_requests"),
        (DataError("out of range"), 400, "invalid"),
        (OperationalError("database is locked"), 503, "database_unavailable"),
        (ZeroDivisionError("a secret detail"), 500, "internal"),
    ],
)
def test_what_else_may_happen_has_the_same_shape(error, status, code):
    answer = errors.handle(error, {})
    assert answer.status_code == status
    assert answer.data["error"]["code"] == code
    assert "secret" not in json.dumps(answer.data)


def test_answers_are_strict_json():
    answer = caller("viewer").get("/api/v1/pools/")
    json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.mark.parametrize(
    ("noun", "viewset"), [pytest.param(p, v, id=p) for p, v, _ in router.registry]
)
def test_a_name_that_is_none_breaks_no_verb(noun, viewset):
    client = caller()
    client.raise_request_exception = False
    verbs = ["", *(f"{verb.url_path}/" for verb in viewset.get_extra_actions() if verb.detail)]
    for name in ("abc", "9" * 23, "a%00b", "é"):
        for verb in verbs:
            for call in (client.get, client.post, client.patch, client.delete):
                answer = call(f"/api/v1/{noun}/{name}/{verb}")
                assert answer.status_code < 500, (call, name, verb)


@pytest.mark.parametrize("path", ["nothing/", "models/a%0Ab/", "alerts/%C2%84/acknowledge/"])
@pytest.mark.parametrize("method", ["get", "post", "delete", "options"])
def test_an_address_that_means_nothing_is_told_as_json_whatever_is_in_it(path, method):
    api = APIClient(enforce_csrf_checks=True)
    api.cookies["csrftoken"] = "a" * 32
    problem(getattr(api, method)(f"/api/v1/{path}"), 404, "not_found")


def test_options_are_told_by_the_schema_alone():
    problem(caller().options("/api/v1/apply/"), 405, "method_not_allowed")


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}])
def test_a_form_of_another_session_is_refused_in_words(headers):
    page = Client(enforce_csrf_checks=True).post("/pools/new/", headers=headers)
    assert page.status_code == 403
    assert b"Nothing was changed: this form was made for another session." in page.content
    assert (b"<html" in page.content) is not bool(headers)
