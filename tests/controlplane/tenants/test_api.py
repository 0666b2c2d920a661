"""Tenants, keys, staff tokens and roles through the API."""

import pytest
from django.contrib.auth import get_user_model

from tests.controlplane.calling import bearing, caller, ok, problem

pytestmark = pytest.mark.django_db


def test_a_key_is_issued_shown_once_listed_and_revoked():
    client = caller()
    ok(client.post("/api/v1/tenants/", {"slug": "acme", "name": "Acme"}, format="json"), 201)
    body = {"tenant": "acme", "name": "prod", "expires_at": "2999-01-01T00:00:00Z"}
    issued = ok(client.post("/api/v1/api-keys/", body, format="json"), 201)
    path = f"/api/v1/api-keys/{issued['id']}/"
    shown = ok(client.get(path))
    assert "plaintext" not in shown
    assert issued["plaintext"].startswith(shown["prefix"])
    assert ok(client.get("/api/v1/tenants/acme/"))["live_keys"] == 1
    revoked = ok(client.post(f"{path}revoke/", {"reason": "leaked"}, format="json"))
    assert revoked["revoked_at"]
    assert revoked["change"]["fleet_revision"]
    assert ok(client.get("/api/v1/api-keys/?tenant=acme&revoked=true"))["count"] == 1
    assert ok(client.get("/api/v1/api-keys/?revoked=false"))["count"] == 0


def test_a_key_of_no_tenant_is_refused_by_field():
    body = {"tenant": "none", "name": "a"}
    error = problem(caller().post("/api/v1/api-keys/", body, format="json"), 404, "not_found")
    assert error["field"] == "tenant"


def test_an_issued_staff_token_works_until_it_is_revoked():
    client = caller()
    body = {"name": "ci", "role": "viewer"}
    issued = ok(client.post("/api/v1/staff-tokens/", body, format="json"), 201)
    robot = bearing(issued["plaintext"])
    ok(robot.get("/api/v1/pools/"))
    assert ok(client.get("/api/v1/staff-tokens/ci/"))["last_used_at"]
    assert client.delete("/api/v1/staff-tokens/ci/").status_code == 204
    problem(robot.get("/api/v1/pools/"), 401, "unauthorized")


def test_roles_are_given_changed_and_taken_away():
    get_user_model().objects.create_user("anna", password="x")
    client = caller()
    body = {"username": "anna", "role": "viewer"}
    ok(client.post("/api/v1/staff/", body, format="json"), 201)
    path = "/api/v1/staff/anna/"
    assert ok(client.patch(path, {"role": "admin"}, format="json"))["role"] == "admin"
    problem(client.delete(path), 409, "last_admin")
    problem(client.patch(path, {"role": "boss"}, format="json"), 400, "invalid")
    problem(
        client.patch("/api/v1/staff/nobody/", {"role": "admin"}, format="json"), 404, "not_found"
    )


def test_somebody_new_is_invited_to_the_console_with_a_link_that_is_shown_once():
    client = caller()
    body = {"username": "olga", "role": "operator", "reason": "she is on call"}
    tried = ok(client.post("/api/v1/staff/?dry_run=true", body, format="json"))
    assert tried["invitation"] is None
    assert not get_user_model().objects.filter(username="olga").exists()
    made = ok(client.post("/api/v1/staff/", body, format="json"), 201)
    assert made["invitation"].startswith("/welcome/")
    assert "invitation" not in ok(client.get("/api/v1/staff/olga/"))
    again = ok(client.post("/api/v1/staff/olga/renew-invitation/", {}, format="json"))
    assert again["invitation"]
    problem(
        client.post("/api/v1/staff/nobody/renew-invitation/", {}, format="json"), 404, "not_found"
    )
