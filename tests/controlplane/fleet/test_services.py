"""Changes to nodes, pools, splits and replicas: who may, what is refused and why, what is kept."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent, FleetRevision
from controlplane.audit.services import Actor
from controlplane.catalog.models import Model
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.domain.replica_states import Event, State
from controlplane.fleet import selectors
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node, Pool, Replica, TrafficSplit
from tests.factories import WHY, make_node, make_pool, make_replica, make_version

pytestmark = pytest.mark.django_db
LOOP = {"actor": Actor("reconcile", "loop"), "reason": "as reported"}


def revision() -> int:
    return FleetRevision.objects.values_list("revision", flat=True).first() or 0


class TestNodes:
    def test_a_node_is_created_changed_and_deleted_with_an_audit_trail(self):
        gpus = [{"index": 0, "model": "A100", "memory_bytes": 1}]
        node = fleet.create_node(name="n1", zone="a", gpus=gpus, **WHY)
        fleet.update_node(name="n1", zone="b", expected_version=node.version, **WHY)
        fleet.delete_node(name="n1", **WHY)
        assert not Node.objects.exists()
        events = AuditEvent.objects.order_by("id")
        assert [e.verb for e in events] == ["node.create", "node.update", "node.delete"]
        assert (events[1].before, events[1].after) == ({"zone": "a"}, {"zone": "b"})

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"name": "Bad Name"}, "name"),
            ({"name": "n1", "gpus": [{"index": -1, "model": "x"}]}, "gpus"),
            ({"name": "n1", "gpus": "two"}, "gpus"),
            ({"name": "n1", "zone": "z" * 64}, "zone"),
        ],
    )
    def test_a_bad_value_is_named(self, given, field):
        with pytest.raises(Invalid) as caught:
            fleet.create_node(**given, **WHY)
        assert caught.value.field == field

    def test_a_name_is_taken_once(self):
        fleet.create_node(name="n1", **WHY)
        with pytest.raises(Conflict, match="already a node 'n1'"):
            fleet.create_node(name="n1", **WHY)

    def test_a_stale_edit_is_a_conflict(self):
        node = make_node("n1")
        fleet.update_node(name="n1", zone="b", **WHY)
        with pytest.raises(Conflict, match="moved meanwhile") as caught:
            fleet.update_node(name="n1", zone="c", expected_version=node.version, **WHY)
        assert caught.value.code == "stale_version"
        with pytest.raises(Conflict):
            fleet.delete_node(name="n1", expected_version=node.version, **WHY)

    def test_a_node_with_replicas_stays(self):
        node = make_node("n1")
        for _ in range(5):
            make_replica(Pool.objects.first() or make_pool(), node=node)
        with pytest.raises(Conflict, match="and more"):
            fleet.delete_node(name="n1", **WHY)

    def test_what_is_not_there_is_not_found(self):
        for call in (
            lambda: fleet.update_node(name="x", zone="a", **WHY),
            lambda: fleet.delete_node(name="x", **WHY),
            lambda: fleet.issue_registration_token(node="x", **WHY),
            lambda: fleet.update_pool(slug="x", owner="a", **WHY),
            lambda: fleet.delete_pool(slug="x", **WHY),
            lambda: fleet.set_splits(model="x", weights={}, **WHY),
            lambda: fleet.drain_replica(replica_id="x", **WHY),
            lambda: selectors.pool("x"),
            lambda: selectors.replica("x"),
            lambda: selectors.node("x"),
        ):
            with pytest.raises(NotFound, match="'x'"):
                call()


class TestPools:
    def create(self, slug="chat", **given):
        defaults = {"model": "m", "version": "v1", "overload_policy": "queue"}
        make_version()
        return fleet.create_pool(slug=slug, **(defaults | given), **WHY)

    def test_a_models_first_pool_gets_all_sessions_and_the_next_none(self):
        self.create("one")
        self.create("two")
        assert dict(TrafficSplit.objects.values_list("pool__slug", "weight")) == {"one": 100.0}

    def test_only_settings_that_differ_from_the_defaults_are_kept(self):
        pool = self.create(settings={"max_retries": 2, "ttft_limit_s": 5})
        assert pool.settings == {"ttft_limit_s": 5}

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"overload_policy": "hope"}, "overload_policy"),
            ({"overload_policy": ""}, "overload_policy"),
            ({"overload_policy": "fallback"}, "fallback_pool"),
            ({"overload_policy": "fallback", "fallback_pool": "gone"}, "fallback_pool"),
            ({"model": "gone"}, "model"),
            ({"version": "gone"}, "version"),
            ({"settings": {"max_retries": 9}}, "settings.max_retries"),
            ({"settings": [1]}, "settings"),
            ({"slug": "No Slug"}, "slug"),
        ],
    )
    def test_a_bad_value_is_named(self, given, field):
        with pytest.raises(Invalid) as caught:
            self.create(**given)
        assert caught.value.field == field
        assert not Pool.objects.exists()
        assert revision() == 0

    def test_a_retired_version_gets_no_pool(self):
        version = make_version()
        version.retired_at = timezone.now()
        version.save()
        with pytest.raises(Conflict, match="retired"):
            self.create()

    def test_fallbacks_may_not_form_a_circle(self):
        self.create("a")
        self.create("b", overload_policy="fallback", fallback_pool="a")
        with pytest.raises(Invalid, match="circle"):
            fleet.update_pool(slug="a", overload_policy="fallback", fallback_pool="b", **WHY)
        with pytest.raises(Invalid, match="circle"):
            fleet.update_pool(slug="a", overload_policy="fallback", fallback_pool="a", **WHY)

    def test_an_edit_raises_version_and_revision_and_records_before_and_after(self):
        pool = self.create()
        before = revision()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, expected_version=1, **WHY)
        pool.refresh_from_db()
        assert (pool.version, revision()) == (2, before + 1)
        event = AuditEvent.objects.get(verb="pool.update")
        assert (event.before, event.after) == ({"settings": {}}, {"settings": {"max_retries": 1}})
        assert event.fleet_revision == before + 1
        with pytest.raises(Conflict):
            fleet.update_pool(slug="chat", settings={}, expected_version=1, **WHY)

    def test_a_fallback_can_be_taken_away(self):
        self.create("a")
        self.create("b", overload_policy="fallback", fallback_pool="a")
        with pytest.raises(Conflict, match="fallback of b"):
            fleet.delete_pool(slug="a", **WHY)
        pool = fleet.update_pool(slug="b", overload_policy="queue", fallback_pool=None, **WHY)
        assert pool.fallback_pool is None
        assert AuditEvent.objects.get(verb="pool.update").before["fallback_pool"] == "a"
        fleet.delete_pool(slug="a", **WHY)

    def test_a_pool_goes_with_its_stopped_replicas_but_not_with_live_ones(self):
        pool = self.create()
        replica = make_replica(pool)
        with pytest.raises(Conflict, match="1 live replicas"):
            fleet.delete_pool(slug="chat", **WHY)
        Replica.objects.filter(pk=replica.pk).update(state=State.STOPPED)
        fleet.delete_pool(slug="chat", **WHY)
        assert not Replica.objects.exists()
        assert not TrafficSplit.objects.exists()

    def test_splits_are_set_as_a_whole_and_zero_stays_zero(self):
        self.create("one")
        self.create("two")
        fleet.set_splits(model="m", weights={"one": 0, "two": 100}, **WHY)
        assert dict(TrafficSplit.objects.values_list("pool__slug", "weight")) == {
            "one": 0.0,
            "two": 100.0,
        }
        fleet.set_splits(model="m", weights={"one": 1}, **WHY)
        assert dict(TrafficSplit.objects.values_list("pool__slug", "weight")) == {"one": 1.0}

    @pytest.mark.parametrize(
        "weights",
        [{"one": -1}, {"one": math.nan}, {"one": "5"}, {"one": True}, {"one": 0}, {"gone": 1}],
    )
    def test_splits_that_make_no_sense_are_refused(self, weights):
        self.create("one")
        with pytest.raises(Invalid) as caught:
            fleet.set_splits(model="m", weights=weights, **WHY)
        assert caught.value.field == "weights"

    def test_a_split_goes_only_to_pools_of_the_model_and_is_guarded_by_its_version(self):
        self.create("one")
        make_pool("other", model="n")
        with pytest.raises(Invalid, match="serves 'n'"):
            fleet.set_splits(model="m", weights={"other": 1}, **WHY)
        seen = Model.objects.get(name="m").version
        fleet.set_splits(model="m", weights={"one": 1}, expected_version=seen, **WHY)
        with pytest.raises(Conflict):
            fleet.set_splits(model="m", weights={"one": 2}, expected_version=seen, **WHY)


class TestReplicas:
    @pytest.fixture
    def pool(self):
        return make_pool()

    def register(self, url="http://10.0.0.1:9001", **given):
        return fleet.register_replica(pool="chat", url=url, **given, **WHY)

    def test_a_registered_replica_is_loading_and_its_credential_is_not_in_the_trail(self, pool):
        replica = self.register(credential="s3cret", node=make_node("n1").name)
        assert replica.state == State.LOADING
        assert [m.to_state for m in replica.moves.all()] == ["loading"]
        assert "s3cret" not in str(list(AuditEvent.objects.values()))
        event = AuditEvent.objects.get(verb="replica.register")
        assert (event.after["credential"], event.after["node"]) == ("***", "n1")

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"url": ""}, "url"),
            ({"url": "http://::1:9001"}, "url"),
            ({"engine": "nope"}, "engine"),
            ({"node": "gone"}, "node"),
            ({"weight": 0}, "weight"),
            ({"gpu_indices": [-1]}, "gpu_indices"),
            ({"gpu_indices": "0"}, "gpu_indices"),
        ],
    )
    def test_a_bad_value_is_named(self, pool, given, field):
        with pytest.raises(Invalid) as caught:
            self.register(**given)
        assert caught.value.field == field

    def test_gpus_must_be_on_the_node(self, pool):
        make_node("n1", gpus=[{"index": 0, "model": "A100"}])
        with pytest.raises(Invalid, match=r"has GPUs \[0\], not \[3\]"):
            self.register(node="n1", gpu_indices=[0, 3])
        assert self.register(node="n1", gpu_indices=[0]).gpu_indices == [0]

    def test_one_address_is_one_live_replica_in_any_spelling(self, pool):
        first = self.register("http://[::1]:9001")
        with pytest.raises(Conflict, match="already a live replica") as caught:
            self.register("http://[0:0::1]:9001/")
        assert caught.value.field == "url"
        Replica.objects.filter(pk=first.pk).update(state=State.STOPPED)
        self.register("http://[::1]:9001")
        with pytest.raises(Conflict, match="Another live replica"):
            fleet.restore_replica(replica_id=first.public_id, **WHY)

    def test_an_address_changes_only_without_traffic(self, pool):
        replica = make_replica(pool, state=State.READY)
        with pytest.raises(Conflict, match="drain it before"):
            fleet.update_replica(replica_id=replica.public_id, url="http://a:1", **WHY)
        fleet.update_replica(replica_id=replica.public_id, weight=2.0, node=None, **WHY)
        Replica.objects.update(state=State.STOPPED)
        fleet.update_replica(replica_id=replica.public_id, url="http://a:1", **WHY)
        replica.refresh_from_db()
        assert (replica.url, replica.weight) == ("http://a:1", 2.0)

    def test_a_drain_has_a_deadline_and_the_revision_that_tells_of_it(self, pool):
        replica = make_replica(pool)
        drained = fleet.drain_replica(replica_id=replica.public_id, **WHY)
        assert drained.state == State.DRAINING
        assert drained.drain_revision == revision()
        assert drained.drain_deadline_at - drained.state_since == timedelta(seconds=600)
        back = fleet.restore_replica(replica_id=replica.public_id, **WHY)
        assert (back.state, back.drain_revision, back.drain_deadline_at) == ("ready", None, None)
        assert back.ready_at is None  # its caches are warm: no new slow start
        short = fleet.drain_replica(replica_id=replica.public_id, limit_s=5, **WHY)
        assert short.drain_deadline_at - short.state_since == timedelta(seconds=5)

    def test_an_operators_ejection_stays_and_a_restore_ramps_up(self, pool):
        replica = make_replica(pool)
        ejected = fleet.eject_replica(replica_id=replica.public_id, **WHY)
        assert (ejected.state, ejected.ejected_by_operator) == ("ejected", True)
        with pytest.raises(Conflict):
            fleet.eject_replica(replica_id=replica.public_id, **WHY)
        back = fleet.restore_replica(replica_id=replica.public_id, **WHY)
        assert (back.state, back.ejected_by_operator) == ("ready", False)
        assert back.ready_at == back.state_since

    def test_an_operator_can_hold_out_what_its_health_took_out(self, pool):
        replica = make_replica(pool)
        fleet.move_replica(replica_id=replica.public_id, event=Event.OUTLIER, **LOOP)
        replica.refresh_from_db()
        assert replica.ejected_by_operator is False
        held = fleet.eject_replica(replica_id=replica.public_id, **WHY)
        assert (held.state, held.ejected_by_operator) == ("ejected", True)

    def test_a_move_that_means_nothing_says_when_it_would(self, pool):
        replica = make_replica(pool, state=State.WARMING)
        with pytest.raises(Conflict, match="only when it is") as caught:
            fleet.drain_replica(replica_id=replica.public_id, **WHY)
        assert caught.value.code == "state_conflict"
        with pytest.raises(Conflict, match="nothing to restore"):
            fleet.restore_replica(replica_id=replica.public_id, **WHY)

    def test_a_stale_move_is_a_conflict(self, pool):
        replica = make_replica(pool)
        fleet.update_replica(replica_id=replica.public_id, weight=3.0, **WHY)
        with pytest.raises(Conflict, match="moved meanwhile"):
            fleet.drain_replica(replica_id=replica.public_id, expected_version=1, **WHY)

    def test_a_replica_with_traffic_is_not_deleted(self, pool):
        replica = make_replica(pool)
        with pytest.raises(Conflict, match="drain it"):
            fleet.delete_replica(replica_id=replica.public_id, **WHY)
        Replica.objects.update(state=State.WARMING)
        fleet.delete_replica(replica_id=replica.public_id, **WHY)
        assert not Replica.objects.exists()

    def test_every_step_of_a_life_is_kept_with_who_and_why(self, pool):
        replica = make_replica(pool)
        fleet.drain_replica(replica_id=replica.public_id, actor=WHY["actor"], reason="x" * 999)
        move = replica.moves.get()
        assert (move.from_state, move.to_state, move.actor) == ("ready", "draining", "tests")
        assert len(move.reason) == 300


class TestReads:
    def test_pools_and_nodes_count_their_replicas(self):
        pool = make_pool()
        make_pool("empty", model="n")
        node = make_node("n1")
        states = [State.READY, State.READY, State.EJECTED, State.DRAINING, State.LOADING]
        for state in [*states, State.FAILED, State.STOPPED]:
            make_replica(pool, state=state, node=node)
        row = selectors.pool("chat")
        counts = (row.ready_count, row.ejected_count, row.draining_count, row.starting_count)
        assert (*counts, row.failed_count) == (2, 1, 1, 1, 1)
        assert selectors.node("n1").replica_count == 5
        assert selectors.pool("empty").ready_count == 0
        assert selectors.replicas(pool="chat").count() == 7
        assert selectors.replicas().count() == 7
        assert selectors.splits(model="m").count() == 1
        assert selectors.splits().count() == 2
        assert selectors.agents().count() == 0
        public_id = selectors.replicas().first().public_id
        assert selectors.replica(public_id).pool.slug == "chat"

    def test_a_list_costs_one_query_at_any_size(self, django_assert_num_queries):
        pool = make_pool()
        for _ in range(30):
            make_replica(pool, node=make_node())
        with django_assert_num_queries(3):
            for row in selectors.replicas():
                assert row.pool.model_version.model.name == "m"
                assert row.node is not None
            for row in selectors.nodes():
                assert getattr(row, "agent", None) is None
            for row in selectors.pools_overview():
                assert row.model_version.model.name == "m"
