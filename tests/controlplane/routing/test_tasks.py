"""The Celery shells: known by the names that others send, each safe to run at any time."""

from __future__ import annotations

import pytest
from django.conf import settings

from controlplane.celery import app
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent
from controlplane.routing import selectors, tasks
from tests.factories import WHY, make_pool


def test_every_task_that_beat_or_a_service_names_is_there():
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert scheduled | {"routing.publish", "routing.deliver"} <= set(app.tasks)


@pytest.mark.django_db
def test_run_one_after_the_other_they_bring_a_change_to_an_agent(fake_agent):
    fake = fake_agent()
    make_pool()
    fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
    for _ in range(2):
        tasks.publish()
        tasks.deliver(Agent.objects.get().pk, selectors.current_epoch())
        tasks.sweep()
        tasks.reconcile()
    assert fake.epochs_sent == [1]
    assert selectors.observed(selectors.fleet_revision()).complete
