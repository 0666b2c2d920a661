"""The loops: replicas move by live agents' reports, silence moves none, runs are on record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.domain.replica_states import Event, State
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Replica
from controlplane.routing import selectors, services
from controlplane.routing.models import LoopRun, RoutingEpoch
from controlplane.routing.services import loops
from routing_agent import wire
from tests.controlplane.routing.conftest import at_once, deliver_all
from tests.factories import ACTOR, WHY, make_agent, make_pool, make_replica

pytestmark = pytest.mark.django_db


def told(fake, replica: Replica, **state) -> None:
    """Have an agent report on a replica."""
    seen = wire.ReplicaReport(replica=replica.public_id, pool="chat", **state)
    services.book_report(report=fake.report(replicas=(seen,)), token=fake.token)


def state_of(replica: Replica) -> str:
    replica.refresh_from_db()
    return replica.state


class TestSweep:
    def test_it_publishes_what_a_lost_hint_left_undone(self):
        make_pool()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        assert services.sweep() == "published epoch 1"
        assert services.sweep() == "epoch 1 is up to date"
        run = LoopRun.objects.get(name="routing.sweep")
        assert run.outcome == "epoch 1 is up to date"
        assert run.duration_s is not None
        assert run.finished_at >= run.started_at

    def test_silent_agents_are_tried_ever_more_rarely(self):
        make_pool()
        agent = make_agent(live=False)
        services.republish(**WHY)
        assert "pushed to 1 agent behind" in services.sweep()
        services.deliver_table(agent_id=agent.pk, epoch=1)
        assert "pushed" not in services.sweep()

    def test_a_failing_run_is_on_record(self):
        def fail() -> str:
            raise ZeroDivisionError("why")

        with pytest.raises(ZeroDivisionError):
            loops._logged_run("routing.sweep", fail)
        assert LoopRun.objects.get().outcome == "failed: ZeroDivisionError: why"


class TestReconcileWithoutReports:
    def test_without_the_recent_store_nothing_moves_but_a_drain_past_its_deadline(self, fake_agent):
        fake = fake_agent()
        pool = make_pool()
        ready, draining = make_replica(pool), make_replica(pool)
        fleet.drain_replica(replica_id=draining.public_id, **WHY)
        told(fake, draining)
        assert services.reconcile_replicas() == "nothing to do, 1 agent heard"
        Replica.objects.filter(pk=draining.pk).update(
            drain_deadline_at=timezone.now() - timedelta(seconds=1)
        )
        assert services.reconcile_replicas() == "1 replica moved on, 1 agent heard"
        assert (state_of(ready), state_of(draining)) == (State.READY, State.STOPPED)


@pytest.mark.redis
@pytest.mark.usefixtures("redis_server")
class TestReconcile:
    @pytest.fixture
    def fake(self, fake_agent):
        return fake_agent()

    def test_a_registered_replica_becomes_ready_by_its_agents_word(self, fake):
        make_pool()
        replica = fleet.register_replica(pool="chat", url="http://10.0.0.1:1", **WHY)
        assert replica.state == State.LOADING
        told(fake, replica, health="healthy", engine_version="0.32.0")
        services.reconcile_replicas()
        assert state_of(replica) == State.WARMING
        told(fake, replica, health="healthy", warmed=True)
        services.reconcile_replicas()
        assert state_of(replica) == State.READY
        assert replica.ready_at is not None
        assert replica.engine_version == "0.32.0"
        assert [m.to_state for m in replica.moves.all()] == ["ready", "warming", "loading"]

    def test_health_ejects_and_heals_by_itself_but_not_an_operators_ejection(self, fake):
        replica = make_replica(make_pool())
        told(fake, replica, health="unhealthy", health_reason="3 probes failed")
        services.reconcile_replicas()
        assert state_of(replica) == State.EJECTED
        assert "3 probes failed" in replica.state_reason
        told(fake, replica, health="healthy")
        services.reconcile_replicas()
        assert state_of(replica) == State.READY
        assert replica.ready_at is None  # agents ramp by themselves
        fleet.eject_replica(replica_id=replica.public_id, **WHY)
        services.reconcile_replicas()
        assert state_of(replica) == State.EJECTED

    def test_a_drain_ends_when_every_agent_that_knows_of_it_is_empty(self, fake, fake_agent):
        other = fake_agent("node-2")
        replica = make_replica(make_pool())
        fleet.drain_replica(replica_id=replica.public_id, **WHY)
        told(fake, replica, inflight_requests=0)  # from before it knew
        services.reconcile_replicas()
        assert state_of(replica) == State.DRAINING
        services.publish_if_behind()
        deliver_all(fake, other)
        told(fake, replica, inflight_requests=0)
        told(other, replica, inflight_requests=2)
        services.reconcile_replicas()
        assert state_of(replica) == State.DRAINING
        told(other, replica, inflight_requests=0)
        services.reconcile_replicas()
        assert state_of(replica) == State.STOPPED

    def test_a_silent_agents_last_word_counts_no_more(self, fake):
        replica = make_replica(make_pool())
        told(fake, replica, health="unhealthy")
        Agent.objects.update(last_seen_at=timezone.now() - timedelta(seconds=60))
        assert services.reconcile_replicas() == "nothing to do, 0 agents heard"
        assert state_of(replica) == State.READY

    def test_a_replica_moved_meanwhile_is_left_to_whoever_moved_it(self, fake):
        replica = make_replica(make_pool())
        stale = Replica.objects.get()
        fleet.move_replica(
            replica_id=replica.public_id, event=Event.DRAIN, actor=ACTOR, reason="first"
        )
        unhealthy = wire.ReplicaReport(replica=replica.public_id, health="unhealthy")
        sighting = loops.Sighting(agent="node-1", revision=0, report=unhealthy)
        assert loops._move(stale, [sighting], timezone.now()) is False
        assert state_of(replica) == State.DRAINING

    def test_a_replica_that_is_healthy_and_warm_already_is_ready_at_once(self, fake):
        make_pool()
        replica = fleet.register_replica(pool="chat", url="http://10.0.0.1:1", **WHY)
        told(fake, replica, health="healthy", warmed=True)
        services.reconcile_replicas()
        assert state_of(replica) == State.READY
        assert replica.moves.count() == 3


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis_server")
def test_many_loops_at_once_take_each_step_once(fake_agent):
    if connection.vendor != "postgresql":
        pytest.skip("set DATABASE_URL to a PostgreSQL server")
    fake = fake_agent()
    make_pool()
    replica = fleet.register_replica(pool="chat", url="http://10.0.0.1:1", **WHY)
    told(fake, replica, health="healthy", warmed=True)
    results = at_once([services.reconcile_replicas, services.sweep] * 4)
    assert not [r for r in results if isinstance(r, Exception)]
    assert state_of(replica) == State.READY
    assert [m.to_state for m in replica.moves.all()] == ["ready", "warming", "loading"]
    services.publish_if_behind()
    epochs = RoutingEpoch.objects.count()
    assert epochs == selectors.current_epoch()
    assert LoopRun.objects.count() == 2
