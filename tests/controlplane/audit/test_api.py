"""The audit log through the API."""

import pytest

from tests.controlplane.calling import caller, model, ok, pool, problem

pytestmark = pytest.mark.django_db


def test_events_are_found_by_who_what_when():
    model()
    pool()
    client = caller("operator", "bot")
    body = {"description": "x", "reason": "tidy up"}
    ok(client.patch("/api/v1/pools/chat-a/", body, format="json"))
    for query in (
        "actor=bot",
        "target_kind=pool&target=chat-a&actor_kind=token",
        "search=tidy",
        "verb=pool.update",
    ):
        found = ok(client.get(f"/api/v1/audit-events/?{query}"))["results"]
        assert [event["reason"] for event in found] == ["tidy up"], query
    assert found[0]["before"] != found[0]["after"]
    assert ok(client.get("/api/v1/audit-events/?since=2999-01-01T00:00:00Z"))["count"] == 0
    one = ok(client.get(f"/api/v1/audit-events/{found[0]['id']}/"))
    assert one == found[0]


def test_events_come_newest_first_and_cannot_be_written():
    model()
    ids = [row["id"] for row in ok(caller("viewer").get("/api/v1/audit-events/"))["results"]]
    assert ids == sorted(ids, reverse=True)
    admin = caller()
    problem(admin.post("/api/v1/audit-events/", {}, format="json"), 405, "method_not_allowed")
    problem(admin.delete(f"/api/v1/audit-events/{ids[0]}/"), 405, "method_not_allowed")


def test_a_time_that_is_none_is_refused():
    error = problem(caller("viewer").get("/api/v1/audit-events/?since=soon"), 400, "invalid")
    assert error["field"] == "since"
