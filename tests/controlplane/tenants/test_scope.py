"""The REST API for tenants: by token or session, within their own tenant and no step further."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.api.router import router
from controlplane.tenants import services
from controlplane.tenants.models import ApiKey, TenantToken
from controlplane.usage.models import UsageHour
from tests.controlplane.calling import bearing, caller, ok, problem
from tests.controlplane.tenants.members import ADMIN, MEMBER, member, tenants_robot
from tests.factories import WHY, make_key, make_pool, make_tenant

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
OPEN = {"tenants", "quotas", "api-keys", "memberships", "models", "usage"}
OPEN_TO_ADMINS = OPEN | {"tenant-tokens"}
ADDED_BY_OTHERS = {"adapters"}  # opened in its own app
NOUNS = [prefix for prefix, _, _ in router.registry if prefix not in ADDED_BY_OTHERS]


@pytest.fixture
def acme():
    return make_tenant(concurrency=5)


@pytest.fixture
def other(acme):
    theirs = make_tenant("globex")
    make_key(theirs, name="their-key")
    services.issue_tenant_token(tenant="globex", name="their-token", **WHY)
    member(theirs, name="their-person")
    now = timezone.now()
    UsageHour.objects.create(hour=now, agent="a", tenant="globex", model="m", requests=1)
    UsageHour.objects.create(hour=now, agent="a", tenant="acme", model="m", requests=2)
    UsageHour.objects.create(hour=now, agent="b", tenant="acme", model="m", requests=3)
    return theirs


@pytest.mark.parametrize("role", [MEMBER, ADMIN])
@pytest.mark.parametrize("noun", NOUNS)
def test_a_tenants_token_reads_what_is_open_to_it_and_nothing_else(acme, noun, role):
    answer = tenants_robot(acme, role).get(f"/api/v1/{noun}/")
    allowed = OPEN_TO_ADMINS if role == ADMIN else OPEN
    expected = {200} if noun in allowed else {403, 404, 405}
    assert answer.status_code in expected, answer.content


def test_nothing_of_another_tenant_is_listed_or_found(acme, other):
    robot = tenants_robot(acme)
    for noun in OPEN_TO_ADMINS:
        assert b"globex" not in robot.get(f"/api/v1/{noun}/").content, noun
        assert b"their-" not in robot.get(f"/api/v1/{noun}/?tenant=globex").content, noun
    for path in ("tenants/globex", "quotas/globex", f"api-keys/{ApiKey.objects.get().public_id}",
                 f"tenant-tokens/{TenantToken.objects.get(name='their-token').pk}"):  # fmt: skip
        problem(robot.get(f"/api/v1/{path}/"), 404, "not_found")


def test_nothing_of_another_tenant_is_changed(acme, other):
    robot = tenants_robot(acme)
    key = ApiKey.objects.get()
    token = TenantToken.objects.get(name="their-token")
    for verb in ("revoke", "rotate"):
        url = f"/api/v1/api-keys/{key.public_id}/{verb}/"
        problem(robot.post(url, {}, format="json"), 404, "not_found")
    problem(robot.delete(f"/api/v1/api-keys/{key.public_id}/"), 404, "not_found")
    problem(robot.delete(f"/api/v1/tenant-tokens/{token.pk}/"), 404, "not_found")
    body = {"tenant": "globex", "name": "mine"}
    for noun in ("api-keys", "tenant-tokens"):
        problem(robot.post(f"/api/v1/{noun}/", body, format="json"), 404, "not_found")
    key.refresh_from_db()
    assert key.revoked_at is None
    assert ApiKey.objects.count() == 1


def test_a_tenants_admin_issues_rotates_and_revokes_keys_by_api(acme):
    robot = tenants_robot(acme)
    body = {"tenant": "acme", "name": "batch"}
    issued = ok(robot.post("/api/v1/api-keys/", body, format="json"), 201)
    assert issued["created_by"] == "acme/ci-min"
    path = f"/api/v1/api-keys/{issued['id']}/"
    after = ok(robot.post(f"{path}rotate/", {"overlap_hours": 1}, format="json"), 201)
    assert after["plaintext"].startswith("sbx-")
    assert after["name"] == "batch-2"
    assert ok(robot.get(path))["expires_at"] is not None
    ok(robot.post(f"{path}revoke/", {}, format="json"))
    problem(robot.post(f"{path}rotate/", {}, format="json"), 409, "key_over")


def test_a_member_changes_nothing_by_api(acme):
    robot = tenants_robot(acme, MEMBER)
    body = {"tenant": "acme", "name": "batch"}
    problem(robot.post("/api/v1/api-keys/", body, format="json"), 403, "forbidden")
    problem(robot.post("/api/v1/tenant-tokens/", body, format="json"), 403, "forbidden")
    problem(robot.patch("/api/v1/tenants/acme/", {"priority": 0}, format="json"), 403, "forbidden")


def test_a_member_calls_with_their_session(acme, other):
    client = APIClient()
    user = member(acme, name="anna").session["_auth_user_id"]
    client.force_login(type(acme.memberships.get().user).objects.get(pk=user))
    assert [t["slug"] for t in ok(client.get("/api/v1/tenants/"))["results"]] == ["acme"]
    problem(client.get("/api/v1/pools/"), 403, "forbidden")


def test_usage_is_added_up_over_agents(acme, other):
    (line,) = ok(tenants_robot(acme).get("/api/v1/usage/"))["results"]
    assert line["requests"] == 5
    everything = ok(caller("viewer").get("/api/v1/usage/?model=m"))
    assert everything["count"] == 2


def test_a_tenant_sees_the_models_it_may_call(acme):
    make_pool(model="chat")
    make_pool("embed", model="bge")
    robot = tenants_robot(acme)
    assert ok(robot.get("/api/v1/models/"))["count"] == 2
    acme.allowed_models = ["bge"]
    acme.save()
    assert [m["name"] for m in ok(robot.get("/api/v1/models/"))["results"]] == ["bge"]
    problem(robot.get("/api/v1/models/chat/"), 404, "not_found")


def test_a_token_that_is_over_or_gone_opens_nothing(acme):
    robot = tenants_robot(acme)
    ok(robot.get("/api/v1/usage/"))
    assert TenantToken.objects.get().last_used_at
    TenantToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    problem(robot.get("/api/v1/usage/"), 401, "unauthorized")
    problem(bearing("stt-nonsense").get("/api/v1/usage/"), 401, "unauthorized")
    over = {"tenant": "acme", "name": "x", "expires_at": "2001-01-01T00:00:00Z"}
    problem(caller().post("/api/v1/tenant-tokens/", over, format="json"), 400, "invalid")


def test_a_tenants_token_is_issued_once_and_ended_by_api(acme):
    client = caller()
    body = {"tenant": "acme", "name": "ci", "role": MEMBER}
    issued = ok(client.post("/api/v1/tenant-tokens/", body, format="json"), 201)
    ok(bearing(issued["plaintext"]).get("/api/v1/quotas/acme/"))
    problem(client.post("/api/v1/tenant-tokens/", body, format="json"), 409, "conflict")
    assert client.delete(f"/api/v1/tenant-tokens/{issued['id']}/").status_code == 204
    problem(bearing(issued["plaintext"]).get("/api/v1/usage/"), 401, "unauthorized")


def test_tokens_of_two_tenants_never_share_an_idempotency_key(acme, other):
    mine, theirs = tenants_robot(acme), tenants_robot(other)
    again = {"HTTP_IDEMPOTENCY_KEY": "once"}
    body = {"tenant": "acme", "name": "k"}
    ok(mine.post("/api/v1/api-keys/", body, format="json", **again), 201)
    problem(theirs.post("/api/v1/api-keys/", body, format="json", **again), 404, "not_found")


def test_staff_see_node_names_in_quotas_and_tenants_do_not(acme):
    from routing_agent import wire

    ask = wire.LeaseAsk(tenant="acme", slots=1)
    call = wire.LeaseRequest(agent="agt-secret", start=1, serial=1, asks=(ask,))
    services.lease_limits(agent="agt-secret", request=call)
    shown = ok(caller("viewer").get("/api/v1/quotas/acme/"))
    assert [a["agent"] for a in shown["agents"]] == ["agt-secret"]
    shown = ok(tenants_robot(acme).get("/api/v1/quotas/acme/"))
    assert [a["agent"] for a in shown["agents"]] == ["agent 1"]
