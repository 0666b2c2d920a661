"""Shadow pairs: booked once, shown side by side, reviewed, forgotten."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.rollouts import services, tasks, views_pairs
from controlplane.rollouts.models import ShadowPair
from controlplane.telemetry.snapshots import NoData
from routing_agent import wire
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import poll, signed_in

pytestmark = pytest.mark.django_db


def pair(uid: str = "u1", number: int = 1, **given) -> wire.ShadowPair:
    fields = {
        "request_id": f"req-{uid}",
        "at": time.time(),
        "tenant": "acme",
        "model": "m",
        "pool": "chat-a",
        "shadow_pool": "chat-b",
        "path": "/v1/chat/completions",
        "primary": wire.ShadowAnswer(
            version="v1", status=200, text="one two", text_length=7, ttft_s=0.1, duration_s=0.2
        ),
        "shadow": wire.ShadowAnswer(
            version="v2", status=200, text="one four", text_length=8, ttft_s=0.1, duration_s=0.3
        ),
        "first_difference": 4,
    }
    return wire.ShadowPair(uid=uid, number=number, **(fields | given))


def test_pairs_are_booked_once_however_often_they_are_sent():
    assert services.book_pairs([pair("u1", 7), pair("u2", 8)]) == 8
    assert services.book_pairs([pair("u1", 7), pair("u2", 8)]) == 8
    assert services.book_pairs([]) == 0
    assert ShadowPair.objects.count() == 2
    row = ShadowPair.objects.get(uid="u1")
    assert (row.outcome, row.first_difference, row.shadow["text"]) == ("differs", 4, "one four")


def test_a_pair_that_the_database_does_not_take_holds_up_no_other(monkeypatch):
    real = ShadowPair.objects.bulk_create

    def picky(rows, **options):
        if any(row.uid == "bad" for row in rows):
            raise DatabaseError("no")
        return real(rows, **options)

    monkeypatch.setattr(ShadowPair.objects, "bulk_create", picky)
    assert services.book_pairs([pair("bad", 1), pair("u2", 2)]) == 2
    assert [row.uid for row in ShadowPair.objects.all()] == ["u2"]


def test_texts_that_postgresql_does_not_store_are_mended():
    answer = wire.ShadowAnswer(status=200, text="a\x00b")
    services.book_pairs([pair(prompt="x\x00y", primary=answer)])
    row = ShadowPair.objects.get()
    assert (row.prompt, row.primary["text"]) == ("x\ufffdy", "a\ufffdb")


def test_the_list_counts_and_filters_and_the_page_shows_both_sides():
    same = wire.ShadowAnswer(version="v2", status=200)
    failed = wire.ShadowAnswer(version="v2", status=500, error="the engine answered 500")
    services.book_pairs(
        [pair("u1"), pair("u2", shadow=same, is_same=True), pair("u3", shadow=failed)]
    )
    client = signed_in("viewer")
    shown = client.get("/shadow-pairs/").content.decode()
    assert all(f"pair-u{i}" in shown for i in (1, 2, 3))
    only = client.get("/shadow-pairs/?outcome=failed").content.decode()
    assert "pair-u3" in only
    assert "pair-u1" not in only
    assert "No shadow pair matches" in client.get("/shadow-pairs/?pool=x").content.decode()
    assert poll(client, "/shadow-pairs/").status_code == 200
    assert "req-u1" in client.get("/shadow-pairs/?csv=1").content.decode()
    one = client.get("/shadow-pairs/u1/").content.decode()
    assert "one <mark>two</mark>" in one
    assert "one <mark>four</mark>" in one
    assert "Nobody has judged" in one
    assert 'value="good"' not in one
    other = client.get("/shadow-pairs/u3/").content.decode()
    assert "the engine answered 500" in other
    assert client.get("/shadow-pairs/u9/").status_code == 404


def test_copies_that_were_not_made_are_told_too(monkeypatch):
    counts = {"answered": 2, "dropped_limit": 9}
    report = wire.Report(agent="a", number=1, started_at=0.0, sent_at=0.0, shadow_copies=counts)
    monkeypatch.setattr(views_pairs.rows, "reports", lambda: {"a": (report, 1.0)})
    shown = signed_in("viewer").get("/shadow-pairs/").content.decode()
    assert "<strong>9</strong> not made: as many were under way as may be" in shown
    monkeypatch.setattr(views_pairs.rows, "reports", lambda: NoData("Redis does not answer"))
    assert "Copies since" not in signed_in("admin").get("/shadow-pairs/").content.decode()


def test_an_empty_list_says_what_pairs_are():
    assert "There are no shadow pairs" in signed_in("viewer").get("/shadow-pairs/").content.decode()


def test_a_review_is_kept_with_who_made_it_and_can_be_taken_back():
    services.book_pairs([pair()])
    client = signed_in("operator")
    client.post("/shadow-pairs/u1/review/", {"review": "bad", "reason": "wrong number"})
    row = ShadowPair.objects.get()
    assert (row.review, row.reviewed_by, row.note) == ("bad", "a-operator", "wrong number")
    assert "wrong number" in client.get("/shadow-pairs/u1/").content.decode()
    assert "bad" in client.get("/shadow-pairs/").content.decode()
    client.post("/shadow-pairs/u1/review/", {"review": ""})
    row.refresh_from_db()
    assert (row.review, row.reviewed_by, row.reviewed_at) == ("", "", None)
    assert client.post("/shadow-pairs/u1/review/", {"review": "odd"}).status_code == 400
    assert AuditEvent.objects.filter(verb="shadow_pair.review").count() == 2


def test_the_api_lists_shows_and_reviews_pairs():
    services.book_pairs([pair("u1"), pair("u2")])
    client = caller("operator")
    assert len(ok(client.get("/api/v1/shadow-pairs/?outcome=differs"))["results"]) == 2
    url = "/api/v1/shadow-pairs/u1/"
    assert ok(client.get(url))["primary"]["text"] == "one two"
    made = ok(client.post(f"{url}review/", {"review": "good", "reason": "ok"}, format="json"))
    assert (made["review"], made["reviewed_by"]) == ("good", "ci-operator")
    problem(client.post(f"{url}review/", {"review": "odd"}, format="json"), 400, "invalid")
    viewer = caller("viewer")
    assert viewer.post(f"{url}review/", {"review": "bad"}, format="json").status_code == 403


def test_old_pairs_and_those_beyond_the_limit_are_forgotten(settings):
    services.book_pairs([pair(f"u{i}") for i in range(5)])
    ShadowPair.objects.filter(uid="u0").update(at=timezone.now() - timedelta(days=8))
    settings.SHADOW_ROWS_LIMIT = 3
    assert tasks.forget_pairs() == 2
    assert ShadowPair.objects.count() == 3


def test_an_agents_report_books_pairs_and_is_told_so(client):
    import hashlib

    import msgspec

    from tests.factories import make_agent

    digest = hashlib.sha256(b"secret").hexdigest()
    agent = make_agent("node-1", token_sha256=digest)
    report = wire.Report(
        agent=agent.public_id, number=1, started_at=1.0, sent_at=1.0, shadow_pairs=(pair("u1", 5),)
    )
    answer = client.post(
        "/api/v1/agent/report",
        msgspec.json.encode(report),
        content_type="application/json",
        headers={"Authorization": "Bearer secret"},
    )
    reply = msgspec.json.decode(answer.content, type=wire.ReportReply)
    assert reply.shadow_pairs_acknowledged == 5
    assert ShadowPair.objects.get().uid == "u1"
