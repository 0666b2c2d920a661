"""The audit log and the fleet revision."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit import selectors, services, tasks
from controlplane.audit.models import AuditEvent
from tests.controlplane.calling import ACTOR


def record(verb: str = "pool.update", target: str = "chat-a", *, touches_fleet: bool = False):
    return services.record(
        actor=ACTOR, verb=verb, target=("pool", target), touches_fleet=touches_fleet
    )


@pytest.mark.django_db
def test_only_changes_of_the_fleet_raise_its_revision():
    assert selectors.fleet_revision() == 0
    assert record().fleet_revision is None
    assert record(touches_fleet=True).fleet_revision == 1
    assert record(touches_fleet=True).fleet_revision == 2
    assert selectors.fleet_revision() == 2


@pytest.mark.django_db(transaction=True)
def test_a_revision_outside_the_transaction_of_its_change_is_refused():
    with pytest.raises(RuntimeError, match="inside the transaction"):
        services.raise_fleet_revision()


@pytest.mark.django_db
def test_events_of_one_thing_come_newest_first():
    record(target="a")
    record("pool.create", "b")
    last = record(target="b")
    assert selectors.events(target_kind="pool", target="b").first() == last
    assert selectors.events(target_kind="pool", target="b").count() == 2


@pytest.mark.django_db
def test_what_is_recorded_in_a_block_is_collected_there_and_only_there():
    with services.collecting() as events:
        inside = record()
    record()
    assert events == [inside]


@pytest.mark.django_db
def test_events_past_their_retention_are_forgotten(settings):
    settings.AUDIT_RETENTION_DAYS = 30
    old, young = record(), record()
    AuditEvent.objects.filter(pk=old.pk).update(at=timezone.now() - timedelta(days=31))
    assert tasks.retention() == 1
    assert tasks.retention() == 0
    assert list(AuditEvent.objects.all()) == [young]
