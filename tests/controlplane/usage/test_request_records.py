"""Lives of requests in the database: booked once, found by id, forgotten in time."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta

import msgspec
import pytest
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from controlplane.domain.errors import NotFound
from controlplane.usage import selectors, services, tasks
from controlplane.usage.models import RequestRecord
from controlplane.usage.services import book_records, forget_requests
from routing_agent import wire
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.routing.conftest import at_once
from tests.controlplane.usage.lives import failure, life
from tests.factories import make_agent

pytestmark = pytest.mark.django_db


def book(*records: wire.RequestRecord) -> int:
    return book_records(agent=make_agent(), records=records)


def test_a_life_is_booked_and_read_back_as_it_was_told():
    told = life("abc/1")
    assert book(told) == told.number
    row = selectors.newest_named("abc/1")
    assert selectors.life_of(row) == told
    assert (row.pool, row.replica, row.tenant, row.failed) == ("chat", "rpl-1", "acme", False)
    assert row.node.startswith("node-")


def test_a_life_sent_again_is_booked_once():
    agent, told = make_agent(), life()
    for _ in range(3):
        assert book_records(agent=agent, records=[told]) == told.number
    assert RequestRecord.objects.count() == 1


def test_a_report_brings_lives_and_its_answer_acknowledges_them():
    agent = make_agent(token_sha256=hashlib.sha256(b"secret").hexdigest())
    told = (life("one"), failure("two"))
    report = wire.Report(agent=agent.public_id, number=1, started_at=1.0, sent_at=1.0, records=told)
    for _ in range(2):
        response = Client().post(
            "/api/v1/agent/report",
            msgspec.json.encode(report),
            content_type="application/json",
            headers={"Authorization": "Bearer secret"},
        )
        reply = msgspec.json.decode(response.content, type=wire.ReportReply)
        assert reply.records_acknowledged == told[-1].number
    assert RequestRecord.objects.count() == 2


def test_odd_texts_are_fitted_instead_of_refused():
    book(life(model="m\x00" * 400, detail="a\x00b", received_at=1e18))
    row = RequestRecord.objects.get()
    assert len(row.model) == 200
    assert "\x00" not in row.model + row.life["detail"]
    assert abs((row.received_at - timezone.now()).total_seconds()) < 60


def test_one_that_the_database_refuses_does_not_hold_up_the_rest(monkeypatch):
    create = RequestRecord.objects.bulk_create

    def picky(rows, **options):
        if any(row.request_id == "poison" for row in rows):
            raise DatabaseError("no")
        return create(rows, **options)

    monkeypatch.setattr(services.RequestRecord.objects, "bulk_create", picky)
    told = [life("good-1"), life("poison"), life("good-2")]
    assert book(*told) == told[-1].number
    assert set(RequestRecord.objects.values_list("request_id", flat=True)) == {"good-1", "good-2"}


def test_old_ones_are_forgotten_and_of_too_many_the_oldest():
    now = time.time()
    book(life("old", received_at=now - 8 * 86400))
    book(*(life(f"r{i}", received_at=now - 60 + i) for i in range(10)))
    gone = forget_requests(before=timezone.now() - timedelta(days=7), keep_rows=4)
    assert gone == 7
    left = set(RequestRecord.objects.values_list("request_id", flat=True))
    assert left == {"r6", "r7", "r8", "r9"}


def test_forgetting_happens_by_the_settings(settings):
    settings.REQUEST_ROWS_LIMIT = 1
    book(life("a"), life("b"))
    assert tasks.forget_requests() == 1
    assert settings.CELERY_BEAT_SCHEDULE["request-retention"]["task"] == tasks.forget_requests.name


def test_problems_come_first_then_the_newest():
    now = time.time()
    book(
        failure("bad-old", received_at=now - 100),
        life("good-new", received_at=now),
        failure("bad-new", received_at=now - 50),
    )
    assert [r.request_id for r in selectors.requests()] == ["bad-new", "bad-old", "good-new"]


def test_an_unknown_id_is_told_what_is_kept():
    with pytest.raises(NotFound, match=r"not sampled\. All failures are kept.* 1 % of the rest"):
        selectors.newest_named("nobody")


def test_the_api_lists_and_filters():
    now = time.time()
    book(
        life("good", tenant="acme", received_at=now - 3600),
        failure("bad", tenant="globex"),
        life("left", status=499),
    )
    client = caller("viewer", "bot")
    for query, expected in (
        ("", ["bad", "left", "good"]),
        ("status=499", ["left"]),
        ("failed=true", ["bad"]),
        ("tenant=globex", ["bad"]),
        ("pool=chat&kept=sampled", ["left", "good"]),
        ("request_id=good", ["good"]),
    ):
        found = ok(client.get(f"/api/v1/requests/?{query}"))["results"]
        assert [r["request_id"] for r in found] == expected, query
        assert "life" not in found[0]
    since = (timezone.now() - timedelta(minutes=5)).isoformat().replace("+00:00", "Z")
    recent = ok(client.get(f"/api/v1/requests/?since={since}"))["results"]
    assert [r["request_id"] for r in recent] == ["bad", "left"]


@pytest.mark.parametrize("request_id", ["plain-1", "with/slash:and=more+x@y"])
def test_the_api_shows_one_life_by_its_request_id(request_id):
    book(life(request_id))
    found = ok(caller("viewer", "bot").get(f"/api/v1/requests/{request_id}/"))
    assert found["request_id"] == request_id
    assert [s["stage"] for s in found["life"]["stages"]][-1] == "DONE"
    assert found["life"]["decision"]["candidates"][0]["terms"] == {"inflight_tokens": 0.0}


def test_the_api_says_that_a_request_was_not_sampled():
    said = problem(caller("viewer", "bot").get("/api/v1/requests/unknown/"), 404, "not_kept")
    assert "not sampled" in said["message"]


def test_lists_read_no_lives_and_need_few_queries(django_assert_max_num_queries):
    book(*(life(f"r{i}") for i in range(100)))
    client = caller("viewer", "bot")
    with django_assert_max_num_queries(8):
        ok(client.get("/api/v1/requests/"))


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_one_life_booked_by_many_at_once_is_one_row():
    if connection.vendor != "postgresql":
        pytest.skip("set DATABASE_URL to a PostgreSQL server")
    agent, told = make_agent(), [life(f"r{i}") for i in range(50)]
    results = at_once([lambda: book_records(agent=agent, records=told)] * 8)
    assert not [r for r in results if isinstance(r, Exception)]
    assert RequestRecord.objects.count() == 50
