"""Lease calls over a real database: limits are shared out once, whoever asks at the same time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import time_machine
from django.db import connection, connections
from django.test import Client

from controlplane.fleet.models import Agent
from controlplane.routing import selectors as routing
from controlplane.tenants import selectors, services
from controlplane.tenants.models import LimitLedger, Tenant
from routing_agent import wire
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import signed_in
from tests.factories import make_agent, make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _still() -> Iterator[None]:
    """Let no time pass: limits fill up again by the second, and a test may take long."""
    with time_machine.travel(time.time(), tick=False):
        yield


def ask(agent: str, serial: int = 1, *, start: int = 1, **asked: int) -> wire.LeaseGrant:
    """Make one lease call for tenant acme."""
    asks = (wire.LeaseAsk(tenant="acme", **asked),)
    request = wire.LeaseRequest(agent=agent, start=start, serial=serial, asks=asks)
    return services.lease_limits(agent=agent, request=request).grants[0]


def post(message: wire.LeaseRequest, token: str) -> tuple[int, bytes]:
    response = Client(enforce_csrf_checks=True).post(
        "/api/v1/agent/leases",
        msgspec.json.encode(message),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return response.status_code, response.content


def test_slots_are_given_until_there_are_none_and_again_when_they_come_back():
    make_tenant(concurrency=5)
    assert ask("a", more_slots=25).slots == 5
    assert ask("b", more_slots=25).slots == 0
    assert ask("a", 2).slots == 0
    assert ask("b", 2, more_slots=25).slots == 5


def test_the_ledger_survives_the_database():
    make_tenant(concurrency=5, requests_per_minute=60, tokens_per_minute=600)
    grant = ask("a", more_slots=2, requests=2, tokens=200)
    assert (grant.slots, grant.requests, grant.tokens) == (2, 2, 200)
    again = ask("a", more_slots=2, requests=2, tokens=200)
    assert again == grant, "the same call is booked once"
    use = selectors.limit_use(Tenant.objects.get(), now=time.time())
    assert (use.slots_held, use.requests_left, use.tokens_left) == (2, 58, 400)
    assert use.agents[0].agent == "a"


def test_a_tenant_that_is_gone_gets_nothing():
    request = wire.LeaseRequest(
        agent="a", start=1, serial=1, asks=(wire.LeaseAsk(tenant="none", more_slots=1),)
    )
    assert services.lease_limits(agent="a", request=request).grants == ()


def test_a_lease_call_needs_the_agents_own_token():
    make_tenant(concurrency=5)
    token = "sba-lease"
    agent = make_agent("n1", token_sha256=hashlib.sha256(token.encode()).hexdigest())
    asks = (wire.LeaseAsk(tenant="acme", more_slots=2),)
    message = wire.LeaseRequest(agent=agent.public_id, start=1, serial=1, asks=asks)
    status, body = post(message, token)
    assert status == 200
    assert msgspec.json.decode(body, type=wire.LeaseReply).grants[0].slots == 2
    assert post(message, "wrong")[0] == 401
    assert post(msgspec.structs.replace(message, agent="agt-other"), token)[0] == 401


def test_a_lease_call_needs_no_redis(settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    make_tenant(concurrency=1)
    assert ask("a", more_slots=1).slots == 1


def test_limits_reach_the_agents_tables():
    make_tenant(concurrency=5, limits_when_unreachable="closed")
    make_tenant("free")
    rows = {row.slug: row for row in routing.fleet_snapshot().tenants}
    assert rows["acme"].concurrency == 5
    assert rows["acme"].when_unreachable == "closed"
    assert rows["free"].concurrency is None


def test_limits_are_set_by_api_and_their_use_is_told():
    client = caller()
    make_tenant()
    path = "/api/v1/tenants/acme/"
    changed = ok(client.patch(path, {"concurrency": 5, "requests_per_minute": 60}, format="json"))
    assert changed["concurrency"] == 5
    problem(client.patch(path, {"concurrency": -1}, format="json"), 400, "invalid")
    ask("a", more_slots=3, requests=3, in_use=0)
    quota = ok(client.get("/api/v1/quotas/acme/"))
    assert quota["slots_held"] == 3
    assert quota["requests_left"] == 57
    assert quota["tokens_per_minute"] is None
    assert [(a["agent"], a["slots"], a["share"]) for a in quota["agents"]] == [("a", 3, 5)]
    assert ok(client.get("/api/v1/quotas/"))["count"] == 1
    ok(client.patch(path, {"concurrency": None}, format="json"))
    assert ok(client.get("/api/v1/quotas/acme/"))["concurrency"] is None


def test_a_list_of_quotas_takes_as_many_queries_however_many_tenants(
    django_assert_max_num_queries,
):
    client = caller()
    for number in range(20):
        LimitLedger.objects.create(tenant=make_tenant(f"t-{number}", concurrency=1))
    with django_assert_max_num_queries(6):
        assert ok(client.get("/api/v1/quotas/"))["count"] == 20


def test_the_tenants_page_shows_limits_shares_and_use():
    make_tenant(concurrency=5, tokens_per_minute=600)
    client = signed_in("viewer")
    page = client.get("/tenants/acme/").content.decode()
    assert "No agent holds a part of it" in page
    ask("agt-7", more_slots=4, tokens=100)
    page = client.get("/tenants/acme/").content.decode()
    assert "agt-7" in page  # told of before it was registered here
    Agent.objects.filter(pk=make_agent("node-7").pk).update(public_id="agt-7")
    page = client.get("/tenants/acme/").content.decode()
    assert 'href="/nodes/node-7/">node-7</a>' in page
    assert "0 running, 4 held ready by 1 agent" in page
    assert '<td class="num">500</td>' in page
    assert "Requests a minute" not in page


def test_the_page_of_a_tenant_without_limits_says_so():
    make_tenant()
    assert "No limits" in signed_in("viewer").get("/tenants/acme/").content.decode()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="set DATABASE_URL to PostgreSQL")
def test_of_agents_that_ask_at_once_no_two_get_the_same_slot():
    make_tenant(concurrency=5)

    def one(number: int) -> int:
        try:
            return ask(f"agent-{number}", more_slots=3).slots
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        given = list(pool.map(one, range(20)))
    assert sum(given) == 5
