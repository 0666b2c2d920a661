"""Usage is booked once: repeated, overlapping, concurrent, and after a new registration."""

from __future__ import annotations

import hashlib
import time

import msgspec
import pytest
from django.db import connection
from django.db.models import Sum
from django.test import Client

from controlplane.fleet.models import Agent
from controlplane.usage.models import UsageHour
from controlplane.usage.services import book_usage
from routing_agent import wire
from tests.controlplane.routing.conftest import at_once
from tests.factories import make_agent, make_key, make_tenant

pytestmark = pytest.mark.django_db


def records(first: int, last: int, **given) -> tuple[wire.UsageRecord, ...]:
    defaults = {"at": time.time(), "request_id": "r", "tenant": "acme", "output_tokens": 1}
    return tuple(wire.UsageRecord(number=n, **(defaults | given)) for n in range(first, last + 1))


def booked() -> int:
    return UsageHour.objects.aggregate(n=Sum("output_tokens"))["n"] or 0


def test_records_are_booked_and_acknowledged_up_to_their_last_number():
    agent = make_agent()
    assert book_usage(agent=agent, records=records(1, 5)) == 5
    assert book_usage(agent=agent, records=records(6, 7, tenant="globex")) == 7
    assert booked() == 7
    assert set(UsageHour.objects.values_list("tenant", flat=True)) == {"acme", "globex"}


def test_records_sent_again_count_once():
    agent = make_agent()
    book_usage(agent=agent, records=records(1, 5))
    assert book_usage(agent=agent, records=records(1, 5)) == 5
    assert book_usage(agent=agent, records=records(3, 8)) == 8
    assert book_usage(agent=agent, records=()) == 8
    assert booked() == 8


def test_numbers_start_anew_with_a_registration():
    agent = make_agent()
    book_usage(agent=agent, records=records(1, 5))
    Agent.objects.update(token_sha256="f" * 64)
    agent.refresh_from_db()
    assert book_usage(agent=agent, records=()) == 0
    assert book_usage(agent=agent, records=records(1, 2)) == 2
    assert booked() == 7


def test_agents_add_to_rows_of_their_own():
    for agent in (make_agent(), make_agent()):
        book_usage(agent=agent, records=records(1, 3))
    assert UsageHour.objects.count() == 2
    assert booked() == 6


def test_a_report_brings_usage_and_its_answer_acknowledges_it():
    agent = make_agent(token_sha256=hashlib.sha256(b"secret").hexdigest())
    report = wire.Report(
        agent=agent.public_id, number=1, started_at=1.0, sent_at=1.0, usage=records(1, 3)
    )
    for _ in range(2):
        response = Client().post(
            "/api/v1/agent/report",
            msgspec.json.encode(report),
            content_type="application/json",
            headers={"Authorization": "Bearer secret"},
        )
        reply = msgspec.json.decode(response.content, type=wire.ReportReply)
        assert reply.usage_acknowledged == 3
    assert booked() == 3


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_one_report_handled_by_many_at_once_counts_once():
    if connection.vendor != "postgresql":
        pytest.skip("set DATABASE_URL to a PostgreSQL server")
    agent = make_agent()
    told = records(1, 50)
    results = at_once([lambda: book_usage(agent=agent, records=told)] * 8)
    assert not [r for r in results if isinstance(r, Exception)]
    assert max(results) == 50
    assert booked() == 50


def test_failed_and_aborted_requests_count_once_with_what_they_used_over_restarts():
    """By tenant, model and hour; a restarted agent sends again what was not acknowledged."""
    agent = make_agent()
    sent = (
        *records(1, 2, model="chat", prompt_tokens=10, api_key="k1"),
        *records(3, 3, model="chat", prompt_tokens=10, status=502, output_tokens=0),
        *records(4, 4, model="chat", prompt_tokens=10, status=499, output_tokens=3),
        *records(5, 5, model="other", status=429, output_tokens=0),
    )
    book_usage(agent=agent, records=sent[:3])
    book_usage(agent=agent, records=sent)
    book_usage(agent=agent, records=sent)
    of_chat = UsageHour.objects.filter(tenant="acme", model="chat").aggregate(
        requests=Sum("requests"), failed=Sum("failed"), prompt=Sum("prompt_tokens")
    )
    assert of_chat == {"requests": 4, "failed": 2, "prompt": 40}
    assert UsageHour.objects.get(model="other").failed == 1
    assert booked() == 5


def test_a_keys_last_use_is_kept_to_the_minute_and_never_goes_back():
    key = make_key(make_tenant(), public_id="key-1")
    agent = make_agent()
    now = time.time()
    book_usage(agent=agent, records=records(1, 1, api_key="key-1", at=now - 600))
    key.refresh_from_db()
    first = key.last_used_at
    assert first.timestamp() == pytest.approx(now - 600)
    book_usage(agent=agent, records=records(2, 2, api_key="key-1", at=now - 590))
    book_usage(agent=agent, records=records(3, 3, api_key="key-1", at=now - 5000))
    key.refresh_from_db()
    assert key.last_used_at == first
    book_usage(agent=agent, records=records(4, 4, api_key="key-1", at=now))
    key.refresh_from_db()
    assert key.last_used_at > first
