"""The scaling loop against agents on real sockets and a real Redis: cases R48 to R56."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.catalog.models import Kind, Model
from controlplane.domain.replica_states import State
from controlplane.fleet import services as fleet_services
from controlplane.fleet.models import Agent, Pool, Replica
from controlplane.fleet.selectors import _seats
from controlplane.routing import services as routing
from controlplane.routing.models import Publication
from controlplane.routing.selectors import fleet_snapshot
from controlplane.scaling import selectors, services
from controlplane.scaling.models import ColdStart, ScalingDecision, ScalingPolicy
from routing_agent import wire
from tests.controlplane.scaling import conftest
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_pool, make_replica

pytestmark = [pytest.mark.redis, pytest.mark.django_db]

SLOW = wire.latency_bucket(5.0)
QUICK = wire.latency_bucket(0.001)


class TestStarting:
    def test_a_pool_comes_to_its_least_on_nodes_of_two_zones(self, fleet):
        fleet.policy(min_replicas=2)
        fleet.settle(2)
        rows = fleet.replicas(State.READY)
        assert {r.node.name for r in rows} == {"node-1", "node-2"}
        starts = fleet.actions(wire.StartEngine)
        assert len({a.id for a in starts}) == 2
        assert all(r.executor == "agent" and r.gpu_indices == [0] for r in rows)
        assert Pool.objects.get(slug="chat").wanted_replicas == 2
        fleet.tick()
        assert ColdStart.objects.count() == 2
        decision = ScalingDecision.objects.order_by("id").first()
        assert decision.reason == "0 replicas: below the least, 2"
        assert "on node-1 (zone a has 0 of the pool, 2 GPUs free)" in decision.outcome

    def test_what_is_started_is_what_policy_and_version_say(self, fleet):
        version = fleet.pool.model_version
        version.engine_arguments, version.context_tokens = {"--kv-blocks": 100}, 4096
        version.save()
        fleet.policy(engine_arguments={"--speed": 2.0}, memory_ratio=0.8)
        fleet.tick()
        (action,) = fleet.actions(wire.StartEngine)
        assert action.do.served_name == "m"
        assert action.do.arguments == {"--kv-blocks": 100, "--speed": 2.0}
        assert (action.do.context_tokens, action.do.memory_ratio) == (4096, 0.8)

    @pytest.mark.parametrize(
        ("program", "key", "slots"), [("vllm", "sbe-", 3), ("sglang", "sbe-", 3), ("triton", "", 0)]
    )
    def test_an_engine_gets_a_key_and_room_for_adapters_if_it_knows_them(
        self, fleet, monkeypatch, program, key, slots
    ):
        facts = msgspec.structs.replace(conftest.FACTS, programs=(program,))
        monkeypatch.setattr(conftest, "FACTS", facts)
        Pool.objects.update(settings={"adapter_slots": 3, "adapter_max_rank": 32})
        fleet.policy(program=program)
        fleet.tick()
        (action,) = fleet.actions(wire.StartEngine)
        assert action.do.api_key[:4] == key
        assert action.do.adapter_slots == slots
        assert action.do.adapter_max_rank == (32 if slots else 64)

    def test_a_model_of_embeddings_is_started_without_room_for_adapters(self, fleet):
        Model.objects.update(kind=Kind.EMBEDDING)
        fleet.policy()
        fleet.tick()
        (action,) = fleet.actions(wire.StartEngine)
        assert action.do.adapter_slots == 0

    def test_a_running_engine_is_given_no_more_adapters_than_it_was_started_for(self, fleet):
        Pool.objects.update(settings={"adapter_slots": 2})
        fleet.policy()
        fleet.settle(1)
        Pool.objects.update(settings={"adapter_slots": 5})
        (seat,) = _seats()
        assert (seat.slots, seat.max_rank) == (2, 64)

    def test_a_lost_answer_starts_no_second_engine(self, fleet):
        fleet.policy()
        fleet.agents[0].behaviour = "garbage"  # it never obeyed; the answer says nothing
        fleet.tick()
        assert [r.state for r in fleet.replicas()] == [State.LOADING]
        fleet.agents[0].behaviour = "obey"
        fleet.settle(1)
        # The action was obeyed, and came once more before a report told so.
        services.execute_all(fleet.now)
        assert {a.id for a in fleet.actions(wire.StartEngine)} == {
            f"{fleet.replicas()[0].public_id}-2"
        }
        assert len(fleet.replicas()) == 1

    def test_an_agents_refusal_fails_the_replica_and_it_is_tried_again_later(self, fleet):
        fleet.policy()
        for agent in fleet.agents:
            agent.refuses = "GPU 0 is held by the engine of rpl-x."
        fleet.tick()
        (row,) = fleet.replicas()
        assert (row.state, row.failures) == (State.FAILED, 1)
        assert row.state_reason == "its agent refused: GPU 0 is held by the engine of rpl-x."
        for agent in fleet.agents:
            agent.refuses = ""
        fleet.now += timedelta(seconds=10)
        fleet.settle(1)
        assert fleet.replicas()[0].failures == 0

    def test_a_crash_is_told_with_its_log_and_the_engine_started_again(self, fleet):
        fleet.policy()
        fleet.settle(1)
        (row,) = fleet.replicas()
        agent = next(a for a in fleet.agents if row.public_id in a.engines)
        agent.engines[row.public_id] = wire.EngineProcess(
            replica=row.public_id, state="failed", serial=2,
            detail="its process ended with status 137", log_tail="CUDA out of memory",
        )  # fmt: skip
        fleet.tick()
        row.refresh_from_db()
        assert row.state == State.FAILED
        assert row.state_reason.endswith("status 137; its log ends: CUDA out of memory")
        page = signed_in("viewer").get(f"/replicas/{row.public_id}/").content.decode()
        assert "its process ended with status 137" in page
        assert "CUDA out of memory</pre>" in page
        fleet.now += timedelta(seconds=10)
        fleet.settle(1)
        row.refresh_from_db()
        assert (row.state, row.starts) == (State.READY, 2)
        assert agent.engines[row.public_id].serial == 4

    def test_a_start_that_takes_too_long_has_failed(self, fleet):
        fleet.policy(loading_limit_s=20.0)
        fleet.tick()
        fleet.now += timedelta(seconds=60)
        services.execute_all(fleet.now)
        assert fleet.replicas()[0].state_reason == "not ready within 20 s of its start"

    def test_without_a_place_the_decision_says_what_each_node_lacks(self, fleet):
        fleet.policy(gpus_per_replica=4)
        decision = fleet.tick()
        assert decision.outcome == (
            "no place for another replica: node-1: 2 of 2 GPUs are free, 4 are needed;"
            " node-2: 2 of 2 GPUs are free, 4 are needed"
        )
        assert fleet.replicas() == []

    def test_weights_that_do_not_fit_are_placed_nowhere(self, fleet):
        fleet.pool.model_version.parameters = 70_000_000_000
        fleet.pool.model_version.save()
        fleet.policy()
        assert "the weights (140.0 GB) do not fit" in fleet.tick().outcome


class TestSignals:
    def test_a_long_queue_makes_the_pool_grow_once(self, fleet):
        fleet.policy()
        fleet.settle(1)
        fleet.now += timedelta(seconds=30)
        fleet.queue_wait = {SLOW: 20}
        decision = fleet.tick()
        assert (decision.code, decision.before, decision.wanted) == ("up", 1, 2)
        assert decision.reason.startswith("queue wait P95 5")
        assert fleet.tick().limit in ("pending", "cool-down")  # R52: it is on its way
        assert len(fleet.replicas()) == 2
        signals = {s["name"]: s for s in decision.inputs["signals"]}
        assert signals["queue wait P95"]["age_s"] is not None

    def test_an_old_peak_is_no_present_load(self, fleet):
        """R50: after one window only what is new counts."""
        slow = wire.PoolDelta(pool="chat", version="v1", requests={"200": 10_000},
                              queue_wait={SLOW: 10_000})  # fmt: skip
        from controlplane.telemetry import recent

        agent = fleet.agents[0]
        then = timezone.now().timestamp() - 2 * selectors.WINDOW_S
        recent.book(agent.report(pools=(slow,)), then)
        fleet.queue_wait = {QUICK: 100}
        fleet.report()
        found = selectors.demand("chat", selectors.heard())
        assert found.agent_wait_p95_s == pytest.approx(0.001, rel=0.1)

    def test_engines_own_queues_count(self, fleet):
        fleet.report()
        delta = wire.PoolDelta(pool="chat", version="v1", engine_queue_wait={SLOW: 5})
        from controlplane.telemetry import recent

        recent.book(fleet.agents[0].report(pools=(delta,)), timezone.now().timestamp())
        found = selectors.demand("chat", selectors.heard())
        assert found.engine_wait_p95_s == pytest.approx(5.0, rel=0.1)
        assert found.agent_wait_p95_s is None

    @pytest.mark.parametrize(
        "missing",
        [
            {"scrape_age_s": 60.0, "scrape_error": "no answer within 3 s"},
            {"kv_usage": None},
            {"scrape_age_s": None, "scrape_error": "the answer is a web page, not metrics"},
        ],
    )
    def test_missing_metrics_hold_this_pool_and_no_other(self, fleet, missing):
        """R48 (a), (c), (d): 3 busy replicas; a second pool is in breach meanwhile."""
        fleet.policy(min_replicas=0, max_replicas=8)
        for _ in range(3):
            make_replica(fleet.pool, executor="agent", launch={}, starts=1)
        other = make_pool("other", model="n")
        services.set_policy(pool="other", program="simulated", min_replicas=2, **WHY)
        fleet.figures |= missing
        for _ in range(3):
            fleet.tick(120.0)
        newest = ScalingDecision.objects.filter(pool=fleet.pool).first()
        assert (newest.code, newest.wanted, newest.is_alarm) == ("hold", 3, True)
        assert len(fleet.replicas(State.READY)) == 3
        assert Replica.objects.filter(pool=other).count() == 2

    def test_one_replica_without_metrics_leaves_the_decision_to_the_others(self, fleet):
        """R48 (b)."""
        fleet.policy(min_replicas=0, max_replicas=8)
        rows = [make_replica(fleet.pool, executor="agent", starts=1) for _ in range(3)]
        fleet.own[rows[0].public_id] = {"scrape_age_s": None, "scrape_error": "no answer"}
        fleet.figures["kv_usage"] = 0.0
        for _ in range(3):
            kept = fleet.tick(120.0)
        assert kept.reason == f"no figures of {rows[0].public_id} (no answer): never down on a gap"
        fleet.figures["kv_usage"] = 1.0
        assert fleet.tick().code == "up"

    def test_engines_whose_make_has_no_gauge_of_its_cache_are_scaled_all_the_same(self, fleet):
        fleet.policy(min_replicas=0, max_replicas=8)
        make_replica(fleet.pool, executor="agent", starts=1, engine="llamacpp")
        fleet.figures |= {"kv_usage": None, "engine_running": 4, "engine_max_running": 4}
        assert fleet.tick().reason == "within targets: utilisation 100 %"
        fleet.figures["engine_max_running"] = None
        held = fleet.tick()
        assert (held.code, held.is_alarm) == ("hold", True)
        assert "its engine does not tell its batch size" in held.reason

    def test_a_dead_store_holds_everything(self, fleet, redis_server):
        fleet.policy()
        fleet.settle(1)
        redis_server.kill()
        decision = fleet.tick()
        assert decision.code == "hold"
        assert "Redis does not answer" in decision.reason


class TestDown:
    def grown(self, fleet, **policy):
        fleet.policy(min_replicas=3, **policy)
        fleet.settle(3)
        fleet.policy(min_replicas=1)
        fleet.figures["kv_usage"] = 0.1

    def test_a_calm_pool_drains_then_stops_and_only_then_its_engine(self, fleet):
        """R53."""
        self.grown(fleet)
        fleet.tick()
        decision = fleet.tick(70.0)
        assert (decision.code, decision.wanted) == ("down", 2)
        (draining,) = fleet.replicas(State.DRAINING)
        assert fleet.actions(wire.StopEngine) == []
        fleet.own[draining.public_id] = {"inflight_requests": 1}
        fleet.tick()
        assert fleet.actions(wire.StopEngine) == []
        assert "drains" in decision.outcome
        Replica.objects.filter(pk=draining.pk).update(drain_deadline_at=timezone.now())
        fleet.tick()
        (stop,) = fleet.actions(wire.StopEngine)
        assert stop.do.replica == draining.public_id
        draining.refresh_from_db()
        assert draining.state == State.STOPPED

    def test_a_drain_is_called_off_when_load_returns(self, fleet):
        self.grown(fleet)
        fleet.tick()
        fleet.tick(70.0)
        (draining,) = fleet.replicas(State.DRAINING)
        fleet.own[draining.public_id] = {"inflight_requests": 1}
        fleet.figures["kv_usage"] = 0.99
        fleet.now += timedelta(seconds=60)
        decision = fleet.tick()
        draining.refresh_from_db()
        assert (decision.code, draining.state) == ("up", State.READY)
        assert draining.state_reason.startswith("load returned: KV usage 99 %")
        assert len(fleet.replicas()) == 3  # nothing had to be started

    def test_an_operators_drain_is_neither_called_off_nor_replaced(self, fleet):
        """R52: draining causes no scale-up by itself."""
        fleet.policy(min_replicas=2)
        fleet.settle(2)
        fleet.policy(min_replicas=1)
        victim = fleet.replicas(State.READY)[0]
        fleet.own[victim.public_id] = {"inflight_requests": 1}
        fleet_services.drain_replica(replica_id=victim.public_id, **WHY)
        for _ in range(3):
            decision = fleet.tick()
        victim.refresh_from_db()
        assert victim.state == State.DRAINING
        assert (decision.code, len(fleet.replicas())) == ("keep", 2)

    def test_an_engine_whose_replica_was_deleted_is_stopped(self, fleet):
        fleet.policy()
        fleet.settle(1)
        (row,) = fleet.replicas()
        Replica.objects.filter(pk=row.pk).update(state="failed")
        services.delete_policy(pool="chat", **WHY)
        fleet_services.delete_replica(replica_id=row.public_id, **WHY)
        fleet.report()
        services.execute_all(fleet.now)
        (stop,) = fleet.actions(wire.StopEngine)
        assert (stop.do.replica, stop.serial) == (row.public_id, 3)

    def test_a_restored_backup_ends_no_engine_it_does_not_know(self, fleet):
        """Agents run a newer table than this database has published: it knows less than they."""
        fleet.policy()
        fleet.settle(1)
        services.delete_policy(pool="chat", **WHY)
        Replica.objects.all().delete()
        newest = Publication.objects.get()
        Publication.objects.update(epoch=newest.epoch - 1)
        services.execute_all(fleet.now)  # before any agent spoke
        Publication.objects.update(
            halted_reason="agent node-1 runs a newer epoch", halted_at=fleet.now,
            highest_reported_epoch=newest.epoch,
        )  # fmt: skip
        assert services.execute_all(fleet.now).startswith("halted: agent node-1")
        routing.adopt(**WHY)
        fleet.report()
        services.execute_all(timezone.now() + timedelta(seconds=595))  # its requests may end
        assert fleet.actions(wire.StopEngine) == []
        services.execute_all(timezone.now() + timedelta(seconds=605))
        assert len(fleet.actions(wire.StopEngine)) == 1

    def test_while_publishing_is_halted_nothing_is_decided(self, fleet):
        fleet.policy()
        Publication.objects.update(halted_reason="agent node-1 runs a newer epoch")
        assert services.decide_all(fleet.now).startswith("halted: ")
        assert not ScalingDecision.objects.exists()

    def test_an_engine_started_after_the_backup_can_be_stopped(self, fleet):
        fleet.policy()
        fleet.settle(1)
        (row,) = fleet.replicas()
        agent = next(a for a in fleet.agents if row.public_id in a.engines)
        later = msgspec.structs.replace(agent.engines[row.public_id], serial=6)
        agent.engines[row.public_id] = later
        services.delete_policy(pool="chat", **WHY)
        Replica.objects.update(state=State.STOPPED, state_since=fleet.now)
        fleet.report()
        services.execute_all(fleet.now)
        assert [a.serial for a in fleet.actions(wire.StopEngine)] == [7]


class TestFromZero:
    def test_twice_from_zero_and_back(self, fleet):
        """R51."""
        fleet.policy(min_replicas=0, start_wait_s=30.0)
        assert Pool.objects.get(slug="chat").start_wait_s == 30.0
        row = next(p for p in fleet_snapshot().pools if p.slug == "chat")
        assert (row.start_wait_s, row.may_grow_to) == (30.0, 4)
        assert fleet.tick().reason == "no replica, and nobody waits"
        for round_ in (1, 2):
            fleet.waiting = (wire.PoolWaiting(pool="chat", requests=20, oldest_s=1.0),)
            assert fleet.tick().code == "up"
            for _ in range(3):
                services.decide_all(fleet.now)
            fleet.settle(1)
            ups = ScalingDecision.objects.filter(code="up")
            assert ups.count() == round_
            fleet.waiting = ()
            fleet.figures["kv_usage"], fleet.figures["engine_running"] = 0.0, 0
            fleet.tick()
            assert fleet.tick(70.0).code == "down"
            fleet.tick()
            assert fleet.replicas(State.READY, State.DRAINING) == []
        assert len({a.id for a in fleet.actions(wire.StartEngine)}) == 2


class TestPeople:
    def test_an_override_is_obeyed_until_it_ends(self, fleet):
        fleet.policy()
        fleet.settle(1)
        until = timezone.now() + timedelta(hours=1)
        services.set_override(pool="chat", count=3, expires_at=until, **WHY)
        decision = fleet.tick()
        assert (decision.code, decision.wanted) == ("override", 3)
        fleet.settle(3)
        services.end_override(pool="chat", **WHY)
        assert fleet.tick().code == "keep"
        verbs = set(AuditEvent.objects.values_list("verb", flat=True))
        assert {"scaling.override", "scaling.end_override", "scaling.set_policy"} <= verbs

    def test_an_override_expires_by_itself(self, fleet):
        fleet.policy()
        until = timezone.now() + timedelta(seconds=30)
        services.set_override(pool="chat", count=2, expires_at=until, **WHY)
        assert fleet.tick().code == "override"
        assert fleet.tick(60.0).code != "override"

    def test_with_scaling_off_the_wanted_count_holds(self, fleet):
        fleet.policy(enabled=False)
        fleet_services.update_pool(slug="chat", wanted_replicas=2, **WHY)
        fleet.settle(2)
        fleet_services.update_pool(slug="chat", wanted_replicas=1, **WHY)
        fleet.tick()
        assert len(fleet.replicas(State.READY)) == 1

    def test_replicas_run_by_somebody_else_are_not_pretended_to_be_started(self, fleet):
        fleet.policy(executor="static", min_replicas=2)
        decision = fleet.tick()
        assert decision.outcome == "cannot act: its replicas are run by somebody else"
        assert fleet.replicas() == []
        assert Pool.objects.get(slug="chat").start_wait_s == 0.0


class TestSpares:
    def test_a_warm_spare_is_loaded_kept_out_of_traffic_and_promoted_at_once(self, fleet):
        fleet.policy(warm_spares=1)
        fleet.settle(1)
        fleet.tick()
        fleet.tick()
        (spare,) = fleet.replicas(State.WARMING)
        assert spare.is_spare
        fleet.figures["kv_usage"] = 0.99
        fleet.now += timedelta(seconds=60)
        fleet.tick()
        spare.refresh_from_db()
        assert (spare.state, spare.is_spare) == (State.READY, False)
        assert spare.state_reason.startswith("a warm spare, promoted: KV usage 99 %")


class TestLostNode:
    def test_what_a_silent_node_held_is_replaced_elsewhere(self, fleet):
        fleet.policy(min_replicas=2)
        fleet.settle(2)
        lost = next(r for r in fleet.replicas() if r.node.name == "node-2")
        fleet.silent.add("node-2")
        Replica.objects.filter(pk=lost.pk).update(state=State.EJECTED, ejected_by_operator=True)
        Agent.objects.filter(node__name="node-2").update(
            last_seen_at=timezone.now() - timedelta(minutes=5)
        )
        decision = fleet.tick()
        assert decision.reason == "1 replica, 1 lost with their nodes: below the least, 2"
        assert {r.node.name for r in fleet.replicas(State.LOADING)} <= {"node-1"}


@pytest.mark.django_db(transaction=True)
class TestOnceOnly:
    def test_decisions_at_once_add_one_replica(self, fleet):
        """R55, R56: several workers, the same want."""
        fleet.policy()
        fleet.report()
        now = fleet.now
        barrier = threading.Barrier(4)
        failures = []

        def run():
            barrier.wait()
            try:
                services.decide_all(now)
                services.execute_all(now)
            except Exception as error:
                failures.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(fleet.replicas()) == 1
        assert len({a.id for a in fleet.actions(wire.StartEngine)}) == 1
        assert sum(len(a.engines) for a in fleet.agents) == 1

    def test_a_worker_that_is_overtaken_leaves_nothing_behind(self, fleet):
        row = fleet.policy()
        fleet.report()
        said = selectors.heard()
        stale = selectors.policies().get(pk=row.pk)
        # Another worker claimed after this one's time was over.
        claims = itertools.count()

        def members(*_args):
            if next(claims) == 0:
                ScalingPolicy.objects.filter(pk=row.pk).update(round=99)
            return []

        original, selectors.members = selectors.members, members
        try:
            assert services.decide_pool(stale, said, fleet.now) is None
        finally:
            selectors.members = original
        assert fleet.replicas() == []
        assert ScalingDecision.objects.count() == 0

    def test_a_decision_under_way_keeps_others_out_until_its_time_is_over(self, fleet):
        row = fleet.policy()
        said = selectors.heard()
        ScalingPolicy.objects.filter(pk=row.pk).update(busy_until=fleet.now + timedelta(seconds=10))
        fresh = selectors.policies().get(pk=row.pk)
        assert services.decide_pool(fresh, said, fleet.now) is None
        assert services.decide_pool(fresh, said, fleet.now + timedelta(seconds=11)) is not None


def test_what_is_decided_again_and_again_is_one_row_and_old_ones_are_forgotten(fleet):
    fleet.policy(min_replicas=0)
    for _ in range(5):
        fleet.tick()
    row = ScalingDecision.objects.get()
    assert row.times == 5
    assert row.last_at - row.at == timedelta(seconds=20)
    gone = make_replica(fleet.pool, state=State.STOPPED, executor="agent")
    kept = make_replica(fleet.pool, state=State.STOPPED)
    assert services.forget_before(timezone.now() + timedelta(days=1)) == 2
    assert not Replica.objects.filter(pk=gone.pk).exists()
    assert Replica.objects.filter(pk=kept.pk).exists()
