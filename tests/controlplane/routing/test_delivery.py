"""Delivery: signed, ordered, repeated harmlessly; a restored backup stops it until adopted."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Conflict, NotFound, Unavailable
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent
from controlplane.routing import selectors, services, signing
from controlplane.routing.explain import explain
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from controlplane.routing.services import halting
from routing_agent import wire
from tests.controlplane.routing.conftest import at_once, deliver_all, register
from tests.factories import WHY, make_agent, make_pool

pytestmark = pytest.mark.django_db


def publish(retries: int) -> int:
    """Publish a table that differs from the last."""
    fleet.update_pool(slug="chat", settings={"max_retries": retries}, **WHY)
    epoch = services.publish_if_behind()
    assert epoch is not None
    return epoch


def delivery(fake, epoch: int) -> Delivery:
    return Delivery.objects.get(agent__public_id=fake.agent, epoch__epoch=epoch)


class TestPush:
    @pytest.fixture(autouse=True)
    def _pool(self):
        make_pool()

    def test_an_agent_that_verifies_signatures_gets_the_table_and_its_receipt_is_booked(
        self, fake_agent
    ):
        fake = fake_agent()
        publish(1)
        deliver_all(fake)
        assert fake.table.epoch == 1
        assert fake.statuses == [200]
        booked = delivery(fake, 1)
        assert (booked.outcome, booked.attempts) == ("applied", 1)
        agent = Agent.objects.get()
        assert (agent.applied_epoch, agent.applied_digest) == (1, fake.table.digest)
        assert agent.applied_revision == selectors.fleet_revision()
        assert selectors.observed(selectors.fleet_revision()).complete

    def test_a_delivery_repeated_after_success_sends_nothing(self, fake_agent):
        fake = fake_agent()
        publish(1)
        deliver_all(fake, fake, fake)
        assert fake.epochs_sent == [1]

    def test_a_task_that_comes_late_brings_the_newest_table(self, fake_agent):
        fake = fake_agent()
        publish(1)
        publish(0)
        agent = Agent.objects.get()
        services.deliver_table(agent_id=agent.pk, epoch=1)
        services.deliver_table(agent_id=agent.pk, epoch=2)
        assert fake.epochs_sent == [2]

    def test_nothing_to_do_for_an_agent_or_epoch_that_is_not_there(self, fake_agent):
        fake_agent()
        assert services.deliver_table(agent_id=Agent.objects.get().pk, epoch=1) is None
        publish(1)
        assert services.deliver_table(agent_id=999_999, epoch=1) is None
        assert services.deliver_table(agent_id=Agent.objects.get().pk, epoch=9) is None

    def test_a_late_older_push_is_refused_and_harmless(self, fake_agent):
        fake = fake_agent()
        publish(1)
        publish(0)
        deliver_all(fake)
        older, newer = (bytes(row.table) for row in RoutingEpoch.objects.order_by("epoch"))
        assert fake.receive(older).outcome == "refused_older"
        assert fake.receive(newer).outcome == "already_there"
        assert fake.table.epoch == 2

    def test_a_push_overtaken_by_a_newer_one_is_superseded_not_alarming(self, fake_agent):
        fake = fake_agent()
        publish(1)
        agent = Agent.objects.select_related("node").get()
        first = RoutingEpoch.objects.get(epoch=1)
        publish(0)
        deliver_all(fake)
        receipt = fake.receive(bytes(first.table))
        outcome, _ = services.delivery.book_receipt(agent, first, receipt)
        assert outcome == "superseded"
        assert selectors.publication().halted_reason == ""

    def test_a_table_signed_with_another_key_is_refused_and_told(self, fake_agent, settings):
        fake = fake_agent()
        settings.SIGNING_KEY_FILE = settings.SIGNING_KEY_FILE.with_name("other.pem")
        signing.make_key_file(settings.SIGNING_KEY_FILE)
        publish(1)
        deliver_all(fake)
        assert fake.table is None
        booked = delivery(fake, 1)
        assert booked.outcome == "unreachable"
        assert "401" in booked.detail
        assert "wrong signature" in booked.detail

    def test_without_a_signing_key_nothing_goes_out_and_the_remedy_is_told(
        self, fake_agent, settings
    ):
        fake = fake_agent()
        publish(1)
        settings.SIGNING_KEY_FILE.unlink()
        deliver_all(fake)
        assert "manage.py bootstrap" in delivery(fake, 1).detail

    def test_an_invalid_table_is_booked_with_the_agents_words_and_not_retried(self, fake_agent):
        fake = fake_agent()
        fake.behaviour = "invalid"
        publish(1)
        deliver_all(fake)
        booked = delivery(fake, 1)
        assert (booked.outcome, booked.detail) == ("invalid", "$.pools[0].name: as told")
        assert "pushed" not in services.sweep()

    def test_a_foreign_lineage_is_refused_until_the_agent_registers_again(self, fake_agent):
        fake = fake_agent()
        fake.lineage = "another"
        publish(1)
        deliver_all(fake)
        assert delivery(fake, 1).outcome == "refused"
        register(fake)
        services.retry_delivery(agent=fake.agent, **WHY)
        deliver_all(fake)
        assert delivery(fake, 1).outcome == "applied"
        assert fake.table.epoch == 1

    @pytest.mark.parametrize(
        ("behaviour", "told"),
        [("hang", "no answer within 0.2 s"), ("garbage", "without a receipt")],
    )
    def test_an_agent_that_hangs_or_babbles_is_unreachable(
        self, fake_agent, settings, behaviour, told
    ):
        settings.PUSH_TIMEOUT_S = 0.2
        fake = fake_agent()
        fake.behaviour = behaviour
        publish(1)
        deliver_all(fake)
        booked = delivery(fake, 1)
        assert booked.outcome == "unreachable"
        assert told in booked.detail
        assert booked.finished_at is None

    def test_an_agent_that_is_gone_is_retried_by_the_sweep_until_it_is_back(self, fake_agent):
        fake = fake_agent()
        port_of = fake.admin_url
        Agent.objects.update(admin_url="http://127.0.0.1:1")
        publish(1)
        deliver_all(fake)
        assert delivery(fake, 1).outcome == "unreachable"
        services.book_report(report=fake.report(), token=fake.token)
        Agent.objects.update(admin_url=port_of)
        assert "pushed to 1 agent behind" in services.sweep()
        deliver_all(fake)
        booked = delivery(fake, 1)
        assert (booked.outcome, booked.attempts, booked.detail) == ("applied", 2, "")

    def test_retrying_names_an_unknown_agent(self):
        with pytest.raises(NotFound):
            services.retry_delivery(agent="agt-none", **WHY)

    def test_observed_counts_every_registered_agent_and_names_those_behind(self, fake_agent):
        fake = fake_agent("node-1")
        make_agent("node-2", live=False)
        publish(1)
        deliver_all(fake)
        seen = selectors.observed(selectors.fleet_revision())
        assert (seen.n, seen.m) == (1, 2)
        assert seen.agents_behind == seen.silent == ("node-2",)


class TestRestoredBackup:
    @pytest.fixture(autouse=True)
    def _pool(self):
        make_pool()

    @pytest.fixture
    def restored(self, fake_agent):
        """An agent at epoch 3 of a database that was put back to epoch 1."""
        fake = fake_agent()
        for retries in (1, 0, 3):
            publish(retries)
        deliver_all(fake)
        RoutingEpoch.objects.filter(epoch__gt=1).delete()
        first = RoutingEpoch.objects.get()
        Publication.objects.update(epoch=1, published_revision=first.fleet_revision)
        Agent.objects.update(applied_epoch=1, applied_digest=first.digest)
        return fake

    def test_a_report_of_a_newer_epoch_halts_publishing_and_says_so(self, restored):
        services.book_report(report=restored.report(), token=restored.token)
        current = selectors.publication()
        assert "node-1 runs epoch 3, newer than ours (1)" in current.halted_reason
        assert "manage.py adopt" in halting.told(current)
        assert current.highest_reported_epoch == 3
        fleet.update_pool(slug="chat", settings={"max_retries": 4}, **WHY)
        assert services.publish_if_behind() is None
        assert services.sweep().startswith("halted: ")
        assert AuditEvent.objects.filter(verb="routing.halt").count() == 1

    def test_while_halted_no_table_goes_out_by_any_way(self, restored):
        reply = services.book_report(report=restored.report(), token=restored.token)
        assert reply.epoch == 0
        sent = list(restored.epochs_sent)
        deliver_all(restored)
        assert restored.epochs_sent == sent
        with pytest.raises(Unavailable, match="halted"):
            services.table_for_agent(token=restored.token)
        with pytest.raises(Conflict, match="halted"):
            services.republish(**WHY)
        with pytest.raises(Conflict, match="halted"):
            services.retry_delivery(agent=restored.agent, **WHY)

    def test_a_push_that_meets_a_newer_epoch_halts_too(self, restored):
        publish(4)
        deliver_all(restored)
        assert restored.table.epoch == 3
        assert "epoch 3, newer than ours (2)" in selectors.publication().halted_reason
        assert delivery(restored, 2).outcome == "refused"

    def test_another_table_under_our_newest_epoch_halts(self, restored):
        publish(4)
        publish(5)
        deliver_all(restored)
        assert "another table under our newest epoch, 3" in selectors.publication().halted_reason

    def test_adopt_continues_at_the_highest_reported_epoch_plus_one(self, restored):
        services.book_report(report=restored.report(), token=restored.token)
        call_command("adopt", "--reason", "restored last night's backup")
        assert selectors.current_epoch() == 4
        deliver_all(restored)
        assert restored.table.epoch == 4
        assert selectors.publication().halted_reason == ""
        event = AuditEvent.objects.get(verb="routing.adopt")
        assert event.reason == "restored last night's backup"
        assert event.after == {"epoch": 4}

    def test_after_a_clash_under_one_epoch_adopting_makes_the_next(self, restored):
        publish(4)
        publish(5)
        deliver_all(restored)
        assert services.adopt(**WHY) == 4
        deliver_all(restored)
        assert restored.table.epoch == 4
        assert restored.table.pools[0].settings.max_retries == 5

    def test_an_agent_that_turns_up_later_with_a_still_higher_epoch_halts_again(self, restored):
        services.book_report(report=restored.report(), token=restored.token)
        services.adopt(**WHY)
        late = msgspec.structs.replace(restored.table, epoch=9)
        restored.table = late
        services.book_report(report=restored.report(), token=restored.token)
        assert services.adopt(**WHY) == 10

    def test_there_is_nothing_to_adopt_unless_halted(self):
        with pytest.raises(Conflict):
            services.adopt(**WHY)
        with pytest.raises(CommandError, match="nothing to adopt"):
            call_command("adopt", "--reason", "by mistake")

    def test_epochs_of_another_lineage_do_not_halt(self, restored):
        report = restored.report(lineage="another", epoch=99)
        services.book_report(report=report, token=restored.token)
        assert selectors.publication().halted_reason == ""
        assert Agent.objects.get().applied_revision == 0


class TestExplain:
    def test_a_live_agent_explains(self, fake_agent):
        fake = fake_agent()
        services.book_report(report=fake.report(), token=fake.token)
        told = explain(wire.ExplainRequest(model="m"))
        assert told.explanation.reason == "asked for m"
        assert told.agent == "node-1"
        assert explain(wire.ExplainRequest(model="m"), agent=fake.agent).agent == "node-1"

    def test_without_a_live_agent_it_says_what_is_missing(self):
        assert "All agents are silent" in explain(wire.ExplainRequest(model="m")).missing
        told = explain(wire.ExplainRequest(model="m"), agent="agt-x")
        assert "'agt-x' is silent" in told.missing

    def test_an_agent_that_refuses_our_signature_is_named_with_its_status(
        self, fake_agent, settings
    ):
        fake = fake_agent()
        services.book_report(report=fake.report(), token=fake.token)
        settings.SIGNING_KEY_FILE = settings.SIGNING_KEY_FILE.with_name("other.pem")
        signing.make_key_file(settings.SIGNING_KEY_FILE)
        assert "node-1: answered 401" in explain(wire.ExplainRequest(model="m")).missing

    def test_an_agent_that_fails_is_named_with_its_failure(self, fake_agent, settings):
        settings.PUSH_TIMEOUT_S = 0.2
        fake = fake_agent()
        services.book_report(report=fake.report(), token=fake.token)
        fake.behaviour = "garbage"
        assert (
            "node-1: its answer cannot be read" in explain(wire.ExplainRequest(model="m")).missing
        )
        fake.behaviour = "hang"
        assert "node-1: no answer within" in explain(wire.ExplainRequest(model="m")).missing


@pytest.mark.slow  # a hundred rounds
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_workers_with_random_delays_always_leave_the_newer_table(fake_agent):
    if connection.vendor != "postgresql":
        pytest.skip("set DATABASE_URL to a PostgreSQL server")
    make_pool()
    fake = fake_agent()
    agent = Agent.objects.get()
    chance = random.Random(7)

    def late(epoch):
        delay_s = chance.uniform(0, 0.02)

        def run():
            time.sleep(delay_s)  # what is tested is that the order of tasks does not matter
            services.deliver_table(agent_id=agent.pk, epoch=epoch)

        return run

    for n in range(100):
        tasks = [late(publish(1 + n % 2)), late(publish(3 + n % 2))]
        fake.delay_s = chance.uniform(0, 0.005)
        at_once(tasks)
        assert fake.table.pools[0].settings.max_retries == 3 + n % 2
    assert selectors.publication().halted_reason == ""
    assert Agent.objects.get().applied_epoch == fake.table.epoch == 200
