"""The audit page: everything in it, filtered by address, new events announced."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.audit import services
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from tests.controlplane.staff import signed_in

pytestmark = pytest.mark.django_db


def event(**given):
    defaults = {"actor": Actor("olaf"), "verb": "pool.update", "target": ("pool", "chat")}
    return services.record(**(defaults | given))


def test_events_show_who_what_why_and_the_difference():
    event(reason="<b>because</b>", change=({"max_retries": 2}, {"max_retries": 3}))
    page = signed_in("viewer").get("/audit/").content.decode()
    assert "olaf" in page
    assert "max retries: 2 → 3" in page
    assert "&lt;b&gt;because&lt;/b&gt;" in page
    assert "<b>because" not in page


def test_filters_are_in_the_address():
    event(reason="one")
    event(actor=Actor("vera"), reason="two")
    page = signed_in().get("/audit/?actor=vera").content.decode()
    assert "two" in page
    assert "one" not in page.split("<tbody>")[1].split("</tbody>")[0]


def test_new_events_are_counted_not_inserted():
    client = signed_in()
    newest = event().pk
    assert b"new event" not in client.get(f"/live/audit/{newest}/").content
    event()
    event()
    assert b"2 new events: show" in client.get(f"/live/audit/{newest}/").content


def test_csv_has_every_event_of_the_filter():
    event(reason="kept")
    event(actor=Actor("vera"), reason="left out")
    body = signed_in().get("/audit/?csv=1&actor=olaf").content.decode()
    assert "kept" in body
    assert "left out" not in body


def test_the_log_is_not_for_strangers():
    assert Client().get("/audit/").status_code == 302
    assert AuditEvent.objects.count() == 0


def test_what_was_not_there_before_is_none_in_words():
    event(verb="staff.set-role", change=({"role": None}, {"role": "operator"}))
    event(verb="tenant.update", change=({"suspended": False}, {"suspended": True}))
    page = signed_in("viewer").get("/audit/").content.decode()
    assert "role: none → operator" in page
    assert "suspended: off → on" in page
