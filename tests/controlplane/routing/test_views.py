"""Routing's pages: what agents run, what was published, following a change, explanations."""

from __future__ import annotations

import time

import pytest
from django.db import transaction
from django.utils import timezone

from controlplane.audit import services as audit
from controlplane.audit.models import AuditEvent
from controlplane.fleet.models import Agent
from controlplane.routing import selectors, services
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_agent, make_pool, make_replica

pytestmark = pytest.mark.django_db


@pytest.fixture
def published():
    pool = make_pool()
    make_replica(pool, credential="engine-secret")
    make_agent("node-1")
    return services.republish(**WHY)


def obey(revision: int) -> None:
    lineage = selectors.publication().lineage
    Agent.objects.update(applied_revision=revision, reported_lineage=lineage)


def test_the_page_shows_epoch_and_agents_and_no_button_to_viewers(published):
    page = signed_in("viewer").get("/routing/").content.decode()
    assert "node-1" in page
    assert f"/routing/epochs/{published}/" in page
    assert "Republish" not in page
    assert "Retry" not in page


def test_a_published_table_never_shows_a_credential(published):
    page = signed_in("viewer").get(f"/routing/epochs/{published}/").content.decode()
    assert "engine-secret" not in page
    assert "***" in page


def test_an_epoch_says_what_changed_from_the_one_before(published):
    make_pool("second", model="m2")
    later = services.republish(**WHY)
    page = signed_in().get(f"/routing/epochs/{later}/").content.decode()
    assert "pool second added" in page
    assert "model m2 added" in page


def test_an_epoch_not_kept_is_a_404_that_says_why():
    answer = signed_in().get("/routing/epochs/99/")
    assert answer.status_code == 404
    assert b"retention" in answer.content


def test_republishing_asks_first_and_needs_a_reason(published):
    client = signed_in()
    assert b"2 or later" in client.get("/routing/republish/").content
    assert client.post("/routing/republish/", {"reason": ""}).status_code == 400
    assert RoutingEpoch.objects.count() == 1
    assert client.post("/routing/republish/", {"reason": "to be sure"})["Location"] == "/routing/"
    assert RoutingEpoch.objects.count() == 2
    assert AuditEvent.objects.filter(verb="routing.republish", reason="to be sure").exists()


def test_a_viewer_may_neither_republish_nor_retry(published):
    client = signed_in("viewer")
    agent = Agent.objects.get()
    assert client.post("/routing/republish/", {"reason": "x"}).status_code == 403
    assert client.post(f"/routing/agents/{agent.public_id}/retry/").status_code == 403


def test_retrying_a_delivery_is_a_post_and_recorded(published):
    client = signed_in()
    url = f"/routing/agents/{Agent.objects.get().public_id}/retry/"
    assert client.get(url).status_code == 405
    assert client.post(url).status_code == 302
    assert AuditEvent.objects.first().verb == "agent.retry_delivery"


def test_a_halt_is_said_with_its_remedy(published):
    Publication.objects.update(halted_reason="agent node-1 runs 41", halted_at=timezone.now())
    page = signed_in().get("/routing/").content.decode()
    assert "Publishing has stopped" in page
    assert "manage.py adopt" in page
    answer = signed_in("admin").post("/routing/republish/", {"reason": "x"})
    assert answer.status_code == 409
    assert "Publishing is halted" in answer.content.decode()


def test_a_change_is_followed_until_every_agent_obeys_it(published):
    client = signed_in()
    revision = selectors.publication().published_revision
    waiting = client.get(f"/live/observed/{revision}/").content.decode()
    assert "observed by 0 of 1 agent" in waiting
    assert "hx-get" in waiting
    obey(revision)
    done = client.get(f"/live/observed/{revision}/").content.decode()
    assert "observed by 1 of 1 agent" in done
    assert "hx-get" not in done


def test_a_change_not_published_yet_says_so(published):
    page = signed_in().get("/live/observed/999/").content.decode()
    assert "stored, not published yet" in page


def test_following_ends_after_a_minute_and_names_who_is_missing(published):
    revision = selectors.publication().published_revision
    url = f"/live/observed/{revision}/?since={time.time() - 100}"
    page = signed_in().get(url).content.decode()
    assert "missing: node-1" in page
    assert "hx-get" not in page


def test_a_tenants_member_follows_a_change_without_reading_names_of_agents(published):
    revision = selectors.publication().published_revision
    member = signed_in("")
    late = member.get(f"/live/observed/{revision}/?since={time.time() - 100}")
    assert late.status_code == 200
    assert "observed by 0 of 1 agent" in late.content.decode()
    assert "node-1" not in late.content.decode()


def test_an_epoch_that_was_replaced_before_an_agent_took_it_says_so(published):
    first = RoutingEpoch.objects.get(epoch=published)
    agent = Agent.objects.get()
    Delivery.objects.update_or_create(epoch=first, agent=agent, defaults={"outcome": "pending"})
    viewer = signed_in("viewer")
    assert "0 of 1 applied" in viewer.get("/routing/").content.decode()
    make_pool("second", model="m2")
    services.republish(**WHY)
    page = viewer.get("/routing/").content.decode()
    assert "replaced by the next before an agent took it" in page


def test_an_epoch_names_the_changes_it_brought(published):
    make_pool("other", model="m2")
    with transaction.atomic():
        for slug in ("chat", "other"):
            target = ("pool", slug)
            audit.record(
                actor=WHY["actor"], verb="pool.update", target=target, reason="", touches_fleet=True
            )
    services.publish_if_behind()
    page = signed_in("viewer").get("/routing/").content.decode()
    assert "pool.update other and 1 more" in page


def test_nonsense_as_a_time_is_no_server_error(published):
    assert signed_in().get("/live/observed/1/?since=soon").status_code == 200


def test_without_a_live_agent_an_explanation_says_what_is_missing():
    page = signed_in("viewer").get("/routing/explain/?model=m").content.decode()
    assert "All agents are silent" in page


def test_an_agent_that_runs_a_newer_table_than_ours_is_ahead_not_current(published):
    Agent.objects.update(applied_epoch=published + 4, last_seen_at=timezone.now())
    page = signed_in("viewer").get("/routing/").content.decode()
    assert "ahead" in page
    assert f"newer than ours ({published})" in page
