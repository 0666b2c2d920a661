"""Published tables, who has seen them, and explanations, through the API."""

import math
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.fleet.models import Agent, Node
from controlplane.routing import selectors, services
from controlplane.routing.api_explain import plain
from controlplane.routing.models import Delivery, RoutingEpoch
from controlplane.tenants import keys
from controlplane.tenants import services as tenants
from routing_agent import wire
from tests.controlplane.calling import WHY, caller, model, ok, pool, problem

pytestmark = pytest.mark.django_db


def agent(name: str = "n1", revision: int = 0, *, seen_s_ago: float = 0) -> Agent:
    """Make an agent that runs a table of `revision`."""
    return Agent.objects.create(
        node=Node.objects.create(name=name),
        public_id=f"agt-{name}",
        token_sha256=keys.digest(name),
        traffic_url="http://127.0.0.1:1",
        admin_url="http://127.0.0.1:1",
        reported_lineage=selectors.publication().lineage,
        applied_revision=revision,
        last_seen_at=timezone.now() - timedelta(seconds=seen_s_ago),
    )


@pytest.fixture
def published(settings) -> int:
    """Publish a fleet with a secret in it, and give the epoch."""
    settings.PUBLISH_DEBOUNCE_S = 0
    model()
    pool()
    client = caller("operator", "setup")
    body = {"pool": "chat-a", "url": "http://127.0.0.1:8301", "credential": "engine-secret"}
    ok(client.post("/api/v1/replicas/", body, format="json"), 201)
    tenants.create_tenant(slug="acme", **WHY)
    tenants.issue_key(tenant="acme", name="prod", **WHY)
    epoch = services.publish_if_behind()
    assert epoch is not None
    return epoch


def test_a_table_is_shown_whole_but_for_its_secrets(published):
    shown = ok(caller("viewer").get(f"/api/v1/routing-tables/{published}/"))
    table = shown["table"]
    assert table["pools"][0]["endpoints"][0]["credential"] == "***"
    assert table["api_keys"][0]["sha256"] == "***"
    assert "engine-secret" not in str(shown)
    assert shown["fleet_revision"] == table["fleet_revision"]


def test_of_several_tables_the_newest_is_current(published):
    republished = services.republish(actor=Actor("ops"), reason="a second table")
    current = ok(caller("viewer").get("/api/v1/routing-tables/current/"))
    assert current["epoch"] == republished > published


def test_the_newest_table_is_current(published):
    client = caller("viewer")
    current = ok(client.get("/api/v1/routing-tables/current/"))
    assert current == ok(client.get(f"/api/v1/routing-tables/{published}/"))


def test_before_the_first_table_there_is_no_current_one():
    problem(caller("viewer").get("/api/v1/routing-tables/current/"), 404, "not_found")


def test_tables_are_listed_newest_first_without_their_content(published):
    ok(
        caller("operator").post(
            "/api/v1/routing-tables/republish/", {"reason": "again"}, format="json"
        )
    )
    rows = ok(caller("viewer").get("/api/v1/routing-tables/"))["results"]
    assert [row["epoch"] for row in rows] == [published + 1, published]
    assert "table" not in rows[0]
    assert "again" in rows[0]["reason"]


def test_republishing_says_the_epoch_and_cannot_be_tried(published):
    client = caller("operator")
    body = ok(client.post("/api/v1/routing-tables/republish/", {"reason": "drill"}, format="json"))
    assert body["epoch"] == published + 1
    assert body["change"]["fleet_revision"]
    answer = client.post("/api/v1/routing-tables/republish/?dry_run=true", {}, format="json")
    assert problem(answer, 400, "invalid")["field"] == "dry_run"
    problem(caller("viewer").post("/api/v1/routing-tables/republish/"), 403, "forbidden")


def test_deliveries_say_outcome_and_lag(published):
    there, gone = agent("n1"), agent("n2")
    table = RoutingEpoch.objects.get(epoch=published)
    Delivery.objects.create(
        agent=there,
        epoch=table,
        outcome=Delivery.Outcome.APPLIED,
        finished_at=table.created_at + timedelta(seconds=1.5),
    )
    Delivery.objects.create(agent=gone, epoch=table, outcome=Delivery.Outcome.UNREACHABLE)
    client = caller("viewer")
    rows = ok(client.get(f"/api/v1/routing-tables/{published}/deliveries/"))["results"]
    assert [(r["node"], r["outcome"], r["lag_s"]) for r in rows] == [
        ("n1", "applied", 1.5),
        ("n2", "unreachable", None),
    ]
    shown = ok(client.get("/api/v1/routing-tables/current/"))
    assert (shown["delivery_count"], shown["applied_count"]) == (2, 1)


def test_a_write_names_the_agents_that_have_not_seen_it(published):
    agent("ahead", revision=10**9)
    agent("behind", revision=0)
    agent("silent", revision=0, seen_s_ago=3600)
    made = ok(caller().post("/api/v1/models/", {"name": "new"}, format="json"), 201)
    observed = made["change"]["observed"]
    assert (observed["n"], observed["m"], observed["silent"]) == (1, 3, ["silent"])
    revision = made["change"]["fleet_revision"]
    later = ok(caller("viewer").get(f"/api/v1/routing-tables/observed/?revision={revision}"))
    assert not later["complete"]
    assert later["agents_behind"] == ["behind", "silent"]
    Agent.objects.update(applied_revision=revision)
    again = ok(caller("viewer", "v2").get(f"/api/v1/routing-tables/observed?revision={revision}"))
    assert (again["n"], again["complete"]) == (3, True)


@pytest.mark.parametrize("revision", ["", "x", "-1", "1.5", "9" * 30])
def test_a_revision_that_is_none_is_refused(revision):
    answer = caller("viewer").get("/api/v1/routing-tables/observed/", {"revision": revision})
    assert problem(answer, 400, "invalid")["field"] == "revision"


def test_a_delivery_to_an_agent_is_retried_by_its_id(published):
    agent("n1")
    client = caller("operator")
    body = {"agent": "agt-n1", "reason": "network mended"}
    made = ok(client.post("/api/v1/routing-tables/retry/", body, format="json"))
    assert made["agent"] == "agt-n1"
    assert made["change"]["audit_event"]
    body["agent"] = "agt-none"
    problem(client.post("/api/v1/routing-tables/retry/", body, format="json"), 404, "not_found")


def test_agents_are_shown_with_whether_they_are_heard():
    agent("n1")
    agent("n2", seen_s_ago=3600)
    rows = ok(caller("viewer").get("/api/v1/agents/"))["results"]
    assert [(row["node"], row["alive"]) for row in rows] == [("n1", True), ("n2", False)]
    assert all("token_sha256" not in row for row in rows)
    assert ok(caller("viewer", "v2").get("/api/v1/agents/agt-n1/"))["node"] == "n1"


def test_an_explanation_needs_an_agent_and_says_so():
    answer = caller("viewer").post("/api/v1/explain/", {"model": "chat"}, format="json")
    problem(answer, 503, "no_agent")


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "model"), ({"model": 1}, "model"), ({"model": "chat", "seed": 1}, "seed")],
)
def test_a_question_that_is_wrong_is_refused_by_field(body, field):
    answer = caller("viewer").post("/api/v1/explain/", body, format="json")
    assert problem(answer, 400, "invalid")["field"] == field


def test_a_live_agent_explains_where_a_request_would_go(fake_agent):
    fake = fake_agent()
    services.book_report(report=fake.report(), token=fake.token)
    body = {"model": "chat", "adapter": "sql", "agent": fake.agent}
    told = ok(caller("viewer").post("/api/v1/explain/", body, format="json"))
    assert (told["agent"], told["reason"]) == ("node-1", "asked for chat")
    assert told["adapter"] == "sql"
    assert told["candidates"] == []


def test_figures_that_json_has_no_word_for_are_null_in_an_explanation():
    candidate = wire.Candidate(replica="r", score=math.nan, terms={"wait_s": math.inf, "a": 1.0})
    shown = plain(wire.Explanation(candidates=(candidate,)))["candidates"][0]
    assert (shown["score"], shown["terms"]) == (None, {"wait_s": None, "a": 1.0})
