"""Publishing: every change reaches a table, a burst makes few, one publisher wins."""

from __future__ import annotations

import threading

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from controlplane.audit.models import FleetRevision
from controlplane.domain.errors import Conflict
from controlplane.domain.replica_states import State
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Pool
from controlplane.routing import selectors, services
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from controlplane.routing.services import publishing
from routing_agent import wire
from tests.controlplane.routing.conftest import at_once, deliver_all
from tests.factories import WHY, make_agent, make_key, make_node, make_pool, make_replica
from tests.factories import make_tenant as tenant


def newest() -> wire.RoutingTable:
    row = RoutingEpoch.objects.order_by("-epoch").first()
    assert row is not None
    return msgspec.json.decode(bytes(row.table), type=wire.RoutingTable)


@pytest.mark.django_db
class TestPublishing:
    def test_a_change_becomes_an_epoch_that_covers_its_revision(self):
        pool = make_pool()
        node = make_node()
        replica = fleet.register_replica(
            pool=pool.slug, url="http://[::1]:9001", node=node.name, credential="s3cret", **WHY
        )
        make_key(tenant())
        assert services.publish_if_behind() == 1
        table = newest()
        endpoint = table.pools[0].endpoints[0]
        assert (endpoint.replica, endpoint.url) == (replica.public_id, "http://[::1]:9001")
        assert (endpoint.state, endpoint.credential) == ("warming", "s3cret")
        assert table.fleet_revision == selectors.fleet_revision()
        assert table.lineage == selectors.publication().lineage
        assert len(table.api_keys) == 1

    def test_nothing_is_published_when_nothing_changed(self):
        assert services.publish_if_behind() is None
        make_pool()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        assert services.publish_if_behind() == 1
        assert services.publish_if_behind() is None

    def test_a_burst_becomes_one_table_with_all_of_it(self):
        make_pool()
        for port in range(30):
            fleet.register_replica(pool="chat", url=f"http://10.0.0.1:{9000 + port}", **WHY)
        assert services.publish_if_behind() == 1
        assert len(newest().pools[0].endpoints) == 30

    def test_each_agent_gets_a_delivery_and_older_open_ones_are_superseded(self):
        make_pool()
        agent = make_agent()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        services.publish_if_behind()
        fleet.update_pool(slug="chat", settings={"max_retries": 0}, **WHY)
        services.publish_if_behind()
        outcomes = dict(Delivery.objects.values_list("epoch__epoch", "outcome"))
        assert outcomes == {1: "superseded", 2: "pending"}
        assert set(Delivery.objects.values_list("agent_id", flat=True)) == {agent.pk}

    def test_a_bad_row_is_stored_with_the_epoch_that_left_it_out(self):
        pool = make_pool(settings={"max_retries": 99})
        make_replica(pool)
        fleet.set_splits(model="m", weights={"chat": 50.0}, **WHY)
        services.publish_if_behind()
        row = RoutingEpoch.objects.get()
        assert [entry["object"] for entry in row.left_out] == ["setting of pool chat"]
        assert len(newest().pools[0].endpoints) == 1

    def test_a_change_agents_need_not_know_makes_no_epoch_but_is_observed(self, fake_agent):
        make_pool()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        fake = fake_agent()
        services.publish_if_behind()
        deliver_all(fake)
        fleet.update_pool(slug="chat", owner="somebody", **WHY)
        revision = selectors.fleet_revision()
        assert not selectors.observed(revision).complete
        assert services.publish_if_behind() is None
        assert selectors.current_epoch() == 1
        assert selectors.publication().published_revision == revision
        assert selectors.observed(revision).complete
        services.book_report(report=fake.report(), token=fake.token)
        assert selectors.observed(revision).complete

    def test_republishing_makes_a_new_epoch_of_the_same_table(self):
        make_pool()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        services.publish_if_behind()
        assert services.republish(**WHY) == 2
        digests = set(RoutingEpoch.objects.values_list("digest", flat=True))
        assert len(digests) == 1

    def test_the_last_200_epochs_are_kept(self):
        make_pool()
        selectors.publication()
        Publication.objects.update(epoch=400)
        RoutingEpoch.objects.bulk_create(
            RoutingEpoch(epoch=n, fleet_revision=0, digest="x", table=b"{}") for n in (1, 200, 300)
        )
        assert services.republish(**WHY) == 401
        assert sorted(RoutingEpoch.objects.values_list("epoch", flat=True)) == [300, 401]

    def test_a_snapshot_costs_the_same_number_of_queries_at_any_size(
        self, django_assert_num_queries
    ):
        pool = make_pool()
        for _ in range(20):
            make_replica(pool)
            make_key(tenant(f"t{selectors.uuid.uuid4().hex[:8]}"))
        with django_assert_num_queries(9):
            selectors.fleet_snapshot()

    def test_delivery_lag_counts_from_the_first_epoch_an_agent_lacks(self):
        make_pool()
        agent = make_agent()
        assert selectors.delivery_lag() == {agent.public_id: None}
        services.republish(**WHY)
        services.republish(**WHY)
        RoutingEpoch.objects.filter(epoch=1).update(
            created_at=timezone.now() - timezone.timedelta(seconds=60)
        )
        lag = selectors.delivery_lag()[agent.public_id]
        assert lag is not None
        assert lag >= 60
        assert [a.pk for a in selectors.agents_behind()] == [agent.pk]


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestSeveralAtOnce:
    @pytest.fixture(autouse=True)
    def _on_postgres(self):
        if connection.vendor != "postgresql":
            pytest.skip("set DATABASE_URL to a PostgreSQL server")

    def test_a_hundred_concurrent_changes_are_all_in_the_last_table(self):
        make_pool()
        done = threading.Event()

        def worker():
            try:
                while not done.is_set():
                    services.publish_if_behind()
            finally:
                connection.close()

        workers = [threading.Thread(target=worker) for _ in range(2)]
        for thread in workers:
            thread.start()

        def change(port):
            return lambda: fleet.register_replica(pool="chat", url=f"http://10.0.0.1:{port}", **WHY)

        results = at_once([change(9000 + i) for i in range(100)])
        done.set()
        for thread in workers:
            thread.join()
        assert [r for r in results if isinstance(r, Exception)] == []
        services.publish_if_behind()
        assert len(newest().pools[0].endpoints) == 100
        assert newest().fleet_revision == FleetRevision.objects.get().revision
        epochs = list(RoutingEpoch.objects.order_by("epoch").values_list("epoch", flat=True))
        assert epochs == list(range(1, len(epochs) + 1))
        revisions = list(
            RoutingEpoch.objects.order_by("epoch").values_list("fleet_revision", flat=True)
        )
        assert revisions == sorted(revisions)

    def test_eight_publishers_at_once_publish_one_change_once(self):
        make_pool()
        fleet.update_pool(slug="chat", settings={"max_retries": 1}, **WHY)
        results = at_once([services.publish_if_behind] * 8)
        assert sorted(str(r) for r in results) == ["1"] + ["None"] * 7
        assert RoutingEpoch.objects.count() == 1

    def test_of_twenty_identical_creations_one_wins_and_nineteen_are_conflicts(self):
        make_pool("seed")
        create = lambda: fleet.create_pool(  # noqa: E731 - a call to be repeated
            slug="same", model="m", version="v1", overload_policy="queue", **WHY
        )
        results = at_once([create] * 20)
        assert sum(isinstance(r, Pool) for r in results) == 1
        assert sum(isinstance(r, Conflict) for r in results) == 19
        assert Pool.objects.filter(slug="same").count() == 1

    def test_of_twenty_drains_one_wins(self):
        replica = make_replica(make_pool())
        drain = lambda: fleet.drain_replica(replica_id=replica.public_id, **WHY)  # noqa: E731
        results = at_once([drain] * 20)
        assert sum(isinstance(r, Conflict) for r in results) == 19
        replica.refresh_from_db()
        assert replica.state == State.DRAINING
        assert replica.moves.count() == 1

    def test_a_snapshot_never_mixes_two_moments(self):
        pool = make_pool()
        replica = make_replica(pool, weight=1.0)
        seen = set()
        done = threading.Event()

        def write():
            try:
                for n in range(2, 60):
                    fleet.update_replica(
                        replica_id=replica.public_id, weight=float(n), actor=WHY["actor"], reason=""
                    )
            finally:
                done.set()
                connection.close()

        first = selectors.fleet_revision()
        thread = threading.Thread(target=write)
        thread.start()
        while not done.is_set():
            with selectors.one_moment():
                snapshot = selectors.fleet_snapshot()
            seen.add((snapshot.revision - first, snapshot.replicas[0].weight))
        thread.join()
        assert all(weight == revision + 1 for revision, weight in seen)


def test_the_rounds_of_a_publisher_outlast_its_rivals():
    assert publishing.ROUNDS >= 8
