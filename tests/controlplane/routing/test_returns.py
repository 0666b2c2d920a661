"""What comes back is noticed once: loops that stood still, agents silent or restarted."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.fleet.models import Agent
from controlplane.overview import happenings
from controlplane.routing import services
from controlplane.routing.models import LoopRun
from controlplane.routing.services import agents, loops
from tests.factories import make_pool

pytestmark = pytest.mark.django_db

BACK = ("loop.resumed", "agent.heard_again", "agent.restarted")


def noticed():
    return list(AuditEvent.objects.filter(verb__in=BACK).order_by("id"))


def let_pass(seconds: float) -> None:
    """Move what is on record back in time."""
    ago = timezone.now() - timedelta(seconds=seconds)
    LoopRun.objects.update(started_at=ago)
    Agent.objects.exclude(last_seen_at=None).update(last_seen_at=ago)


def test_a_loop_that_stood_still_is_recorded_once_with_from_and_to():
    services.sweep()
    let_pass(80)
    services.sweep()
    services.sweep()
    (event,) = noticed()
    assert (event.actor, event.actor_kind, event.verb) == ("routing.sweep", "loop", BACK[0])
    assert set(event.after) == {"from", "to"}


def test_a_loop_in_time_is_not_worth_a_word():
    services.sweep()
    let_pass(14)
    services.sweep()
    assert noticed() == []


def test_of_two_workers_at_once_one_records(monkeypatch):
    services.sweep()
    let_pass(80)
    before = LoopRun.objects.get()
    monkeypatch.setattr(
        LoopRun.objects.__class__, "get_or_create", lambda *_, **__: (before, False)
    )
    loops.note_begin("routing.sweep", 5.0)
    loops.note_begin("routing.sweep", 5.0)
    assert len(noticed()) == 1


def test_an_agent_heard_after_silence_is_recorded_once(fake_agent):
    fake = fake_agent("node-1")
    services.book_report(report=fake.report(), token=fake.token)
    let_pass(60)
    services.book_report(report=fake.report(), token=fake.token)
    services.book_report(report=fake.report(), token=fake.token)
    (event,) = noticed()
    assert (event.verb, event.actor, event.actor_kind) == ("agent.heard_again", "node-1", "agent")
    assert event.after["restarted"] is False


def test_an_agent_restarted_meanwhile_tells_where_its_table_came_from(fake_agent):
    fake = fake_agent("node-1")
    services.book_report(report=fake.report(), token=fake.token)
    let_pass(60)
    again = msgspec.structs.replace(fake.report(), started_at=99.0, table_source="disk")
    services.book_report(report=again, token=fake.token)
    (event,) = noticed()
    assert (event.after["restarted"], event.after["table_source"]) == (True, "disk")


def test_an_agent_restarted_quickly_was_restarted_not_silent(fake_agent):
    fake = fake_agent("node-1")
    services.book_report(report=fake.report(), token=fake.token)
    again = msgspec.structs.replace(fake.report(), started_at=99.0)
    services.book_report(report=again, token=fake.token)
    assert [e.verb for e in noticed()] == ["agent.restarted"]


def test_of_two_reports_at_once_one_records(fake_agent):
    fake = fake_agent("node-1")
    services.book_report(report=fake.report(), token=fake.token)
    let_pass(60)
    seen_by_both = Agent.objects.select_related("node").get()
    state = {"last_seen_at": timezone.now(), "started_at": seen_by_both.started_at}
    for _ in range(2):
        agents._note_return(seen_by_both, fake.report(), "agent.heard_again", state)
    assert len(noticed()) == 1


def test_an_outage_of_all_is_one_line(fake_agent):
    make_pool()
    fakes = [fake_agent("node-1"), fake_agent("node-2")]
    services.sweep()
    services.reconcile_replicas()
    for fake in fakes:
        services.book_report(report=fake.report(), token=fake.token)
    let_pass(80)
    services.sweep()
    services.reconcile_replicas()
    for fake in fakes:
        services.book_report(report=fake.report(), token=fake.token)
    (line,) = happenings.last_day()
    assert line.what == "Control plane away"
    assert line.why.startswith("agents went on with epoch")
    assert 79 <= line.duration_s <= 120
