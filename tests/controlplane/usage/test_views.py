"""The requests' pages: problems first, one life in full, and plain words where there is none."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.usage.services import book_records
from routing_agent import wire
from tests.controlplane.staff import poll, signed_in
from tests.controlplane.usage.lives import failure, life
from tests.factories import make_agent

pytestmark = pytest.mark.django_db


def book(*records: wire.RequestRecord) -> None:
    book_records(agent=make_agent(), records=records)


def page(path: str, role: str = "viewer") -> str:
    response = signed_in(role).get(path)
    assert response.status_code == 200, path
    return response.content.decode()


def body(text: str) -> str:
    return text.split("<tbody>")[1].split("</tbody>")[0]


def test_the_list_shows_failures_first_and_filters_in_the_address():
    book(life("fine-1"), failure("broken-1"), life("gone-1", status=499))
    client = signed_in("viewer")

    def rows(query: str = "") -> str:
        return body(client.get(f"/requests/{query}").content.decode())

    everything = rows()
    assert everything.index("broken-1") < everything.index("fine-1")
    assert "engine failed" in everything
    for query, shown, hidden in (
        ("?outcome=failed", "broken-1", "fine-1"),
        ("?outcome=left", "gone-1", "broken-1"),
        ("?outcome=good", "fine-1", "gone-1"),
        ("?q=fine", "fine-1", "broken-1"),
        ("?status=502", "broken-1", "fine-1"),
    ):
        assert shown in rows(query), query
        assert hidden not in rows(query), query


def test_empty_and_none_are_two_things():
    client = signed_in("viewer")
    assert "No request has been kept yet" in client.get("/requests/").content.decode()
    book(life())
    assert "No kept request matches" in client.get("/requests/?pool=other").content.decode()


def test_the_list_is_polled_and_says_204_when_nothing_changed():
    book(life())
    client = signed_in("viewer")
    first = poll(client, "/requests/")
    assert b"req-1" in first.content
    assert poll(client, "/requests/", first["X-Digest"]).status_code == 204


def test_a_request_shows_stages_budgets_decision_attempts_and_tokens():
    book(life("abc/1", parent_span_id="b" * 16, output_tokens=61))
    text = page("/requests/abc/1/")
    assert text.count("<rect class=") == 4 + 5  # the bar, and the key of each row
    assert "style=" not in text.split("<main")[1]  # the content security policy forbids it
    for words in (
        "PREFILL",
        "estimated",
        "140 ms",  # budget of scheduling and prefill
        "1.50 s",  # budget of 60 further tokens
        "fewest tokens in flight",
        "inflight tokens 0",
        "breaker open",
        "the engine",
        "from the caller's span",
        "Budgets are those published",
    ):
        assert words in text, words


def test_a_failed_request_shows_its_retries_and_why_there_are_no_candidates():
    book(failure())
    text = page("/requests/req-bad/")
    for words in (
        "the engine answered 500",
        "after engine error",
        "2 attempts made",
        "pause before attempt 2",
        "sampled and retried requests only",
        "nobody: there was no answer to count",
    ):
        assert words in text, words


def test_a_request_that_never_got_a_replica_says_so():
    book(
        failure(
            error="no_replica", status=503, attempts=(),
            decision=wire.DecisionRecord(pool="chat", version="v1", reason="2 of 2: breaker open"),
        ),
        life("refused", status=404, error="model_not_found", attempts=(),
             decision=wire.DecisionRecord(), stages=()),
    )  # fmt: skip
    text = page("/requests/req-bad/")
    assert "could take it: 2 of 2: breaker open" in text
    assert "never reached a replica" in text
    assert (
        "refused before a pool was chosen"
        in signed_in("admin").get("/requests/refused/").content.decode()
    )


def test_ids_that_repeat_lead_to_each_other():
    book(life("same", received_at=1_700_000_000.0), failure("same"), life("same"))
    text = page("/requests/same/")
    assert "Other requests under this id" in text
    assert text.count("?uid=") == 2


def test_a_request_without_a_record_says_plainly_why():
    response = signed_in("viewer").get("/requests/7f3a/")
    assert response.status_code == 404
    text = response.content.decode()
    for words in ("Not sampled", "All failures are kept", "1 % of the rest", "7 days"):
        assert words in text


def test_search_finds_requests_by_id_and_trace():
    told = life("order-4711")
    book(told)
    client = signed_in("viewer")
    for text in ("order-4711", "order-47", told.trace_id):
        assert client.get(f"/search/?q={text}")["Location"] == "/requests/order-4711/"
    unknown = "0123456789abcdef" * 2
    assert client.get(f"/search/?q={unknown}")["Location"] == f"/requests/{unknown}/"


def test_markup_in_what_agents_tell_stays_text():
    nasty = "<img src=x onerror=alert(1)>"
    book(life("x", model=nasty, detail=nasty, error=nasty, status=400))
    assert "<img" not in page("/requests/x/").split("<main")[1]


def test_it_is_for_those_who_signed_in():
    assert Client().get("/requests/").status_code == 302
    assert Client().get("/requests/x/").status_code == 302


def test_csv_has_the_filtered_requests():
    book(life("one"), failure("two"))
    text = signed_in("viewer").get("/requests/?csv=1&outcome=failed").content.decode()
    assert "two" in text
    assert "one" not in text
