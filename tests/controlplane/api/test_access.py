"""Who may call what: tokens, sessions, roles."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.api.router import router
from controlplane.tenants import services
from controlplane.tenants.models import StaffToken
from tests.controlplane.calling import WHY, bearing, caller, model, ok, pool, problem, replica

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
NOT_LISTED = {"explain", "apply", "diagnoses"}  # verbs, and what is asked of one pool
NOUNS = [prefix for prefix, _, _ in router.registry if prefix not in NOT_LISTED]


@pytest.mark.parametrize("noun", NOUNS)
def test_nobody_reads_without_a_token(noun):
    answer = APIClient().get(f"/api/v1/{noun}/")
    problem(answer, 401, "unauthorized")
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("token", ["nonsense", "sbt-", "sbt-" + "x" * 43, "ü", ""])
def test_a_token_that_is_none_is_refused(token):
    problem(bearing(token).get("/api/v1/pools/"), 401, "unauthorized")


def test_a_token_that_is_over_is_refused():
    client = caller("viewer")
    ok(client.get("/api/v1/pools/"))
    StaffToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    problem(client.get("/api/v1/pools/"), 401, "unauthorized")


@pytest.mark.parametrize("noun", [n for n in NOUNS if not n.endswith("-tokens") and n != "export"])
def test_a_viewer_reads_everything_but_tokens(noun):
    ok(caller("viewer").get(f"/api/v1/{noun}/"))


def test_only_an_admin_sees_staff_tokens():
    problem(caller("operator").get("/api/v1/staff-tokens/"), 403, "forbidden")
    shown = ok(caller("admin").get("/api/v1/staff-tokens/"))
    assert all("sha256" not in row for row in shown["results"])


def test_traffic_verbs_need_an_operator_and_say_so():
    model()
    pool()
    row = replica()
    error = problem(caller("viewer").post(f"/api/v1/replicas/{row}/eject/"), 403, "forbidden")
    assert "operator" in error["message"]
    assert "viewer" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("delete", "/api/v1/pools/chat-a/"),
        ("post", "/api/v1/tenants/"),
        ("delete", "/api/v1/tenants/acme/"),
        ("post", "/api/v1/staff-tokens/"),
        ("post", "/api/v1/staff/"),
        ("post", "/api/v1/memberships/"),
        ("post", "/api/v1/tenant-tokens/"),
        ("delete", "/api/v1/models/chat/"),
        ("delete", "/api/v1/nodes/n1/"),
        ("post", "/api/v1/nodes/n1/registration-token/"),
    ],
)
def test_what_is_dangerous_needs_an_admin(method, path):
    problem(getattr(caller("operator"), method)(path), 403, "forbidden")


def test_an_operator_issues_rotates_and_revokes_keys_as_in_the_console():
    ok(caller("admin").post("/api/v1/tenants/", {"slug": "acme"}, format="json"), 201)
    body = {"tenant": "acme", "name": "prod"}
    problem(caller("viewer").post("/api/v1/api-keys/", body, format="json"), 403, "forbidden")
    operator = caller("operator")
    key = ok(operator.post("/api/v1/api-keys/", body, format="json"), 201)["id"]
    ok(operator.post(f"/api/v1/api-keys/{key}/rotate/"), 201)
    ok(operator.post(f"/api/v1/api-keys/{key}/revoke/"))


def test_a_console_user_calls_with_the_session_and_needs_the_csrf_token():
    user = get_user_model().objects.create_user("anna", password="x")
    services.set_role(user=user, role="operator", **WHY)
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(user)
    ok(client.get("/api/v1/pools/"))
    problem(client.post("/api/v1/models/", {"name": "chat"}, format="json"), 403, "forbidden")


def test_a_console_user_without_a_role_sees_nothing():
    client = APIClient()
    client.force_login(get_user_model().objects.create_user("anna", password="x"))
    problem(client.get("/api/v1/pools/"), 403, "forbidden")


def test_a_change_is_recorded_under_the_name_of_the_token():
    client = caller("admin", "deploy-bot")
    ok(client.post("/api/v1/models/", {"name": "chat", "reason": "new"}, format="json"), 201)
    event = ok(client.get("/api/v1/audit-events/?verb=model.create"))["results"][0]
    assert (event["actor"], event["actor_kind"], event["reason"]) == ("deploy-bot", "token", "new")


def test_the_schema_and_its_page_need_no_login_and_no_other_origin():
    page = APIClient().get(reverse("api-docs"))
    assert page.status_code == 200
    assert b"https://" not in page.content.replace(b"https://www.w3.org", b"")
    policy = page["Content-Security-Policy"]
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "script-src 'self'" in [part.strip() for part in policy.split(";")]
    schema = APIClient().get(reverse("api-schema"))
    assert "'unsafe-inline'" not in schema["Content-Security-Policy"]
