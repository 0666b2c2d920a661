"""The loop of adapters: placed, observed, switched, forgotten; over a real recent store."""

from __future__ import annotations

import io
import time
from pathlib import Path

import msgspec
import pytest

from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.catalog import services as catalog
from controlplane.catalog import uploads
from controlplane.catalog.models import Adapter, AdapterVersion
from controlplane.catalog.uploads import Incoming
from controlplane.domain.replica_states import State
from controlplane.domain.tables import compile_table
from controlplane.fleet import selectors
from controlplane.fleet.models import AdapterPlacement, Agent, Replica
from controlplane.fleet.services import reconcile_adapters
from controlplane.routing.selectors import fleet_snapshot
from controlplane.telemetry import recent
from routing_agent import wire
from tests import adapters as made
from tests.controlplane.routing.conftest import redis_server
from tests.factories import ACTOR, WHY, make_agent, make_pool, make_replica, make_tenant

__all__ = ["redis_server"]
pytestmark = [pytest.mark.django_db, pytest.mark.redis]


class World:
    """A pool of some replicas, each on a node with an agent, and what the agents tell."""

    def __init__(self, replicas: int = 2, **settings) -> None:
        self.pool = make_pool("chat", settings=settings)
        self.tenant = make_tenant("acme")
        self.numbers = 0
        self.agents: dict[str, Agent] = {}
        for _ in range(replicas):
            self.add()

    def add(self, **given) -> Replica:
        agent = make_agent()
        replica = make_replica(self.pool, node=agent.node, **given)
        self.agents[replica.public_id] = agent
        return replica

    @property
    def names(self) -> list[str]:
        return list(self.agents)

    def upload(self, name: str = "sql", fill: int = 0, **given) -> AdapterVersion:
        files = {
            "adapter_config.json": made.config_bytes(),
            "adapter_model.safetensors": made.weights(fill=fill),
        }
        sent = [Incoming(n, io.BytesIO(c)) for n, c in files.items()]
        wanted = catalog.Wanted(tenant="acme", name=name, model="m")
        with catalog.received(wanted=wanted, uploaded=sent, actor=ACTOR) as received:
            adapter = catalog.add_version(upload=received, **WHY)
        return adapter.versions.order_by("-number")[0]

    def tell(self, replica: str, *states: wire.AdapterState, listed: tuple[str, ...] = ()) -> None:
        self.numbers += 1
        agent = self.agents[replica]
        told = wire.ReplicaReport(replica=replica, adapters=listed, adapter_states=states)
        report = wire.Report(
            agent=agent.public_id,
            number=self.numbers,
            started_at=1.0,
            sent_at=1.0,
            replicas=(told,),
        )
        recent.book(report, time.time())

    def all_loaded(self, *versions: AdapterVersion) -> None:
        for replica in self.names:
            names = tuple(v.served_name for v in versions)
            self.tell(replica, *(state(v) for v in versions), listed=names)


def state(version: AdapterVersion, stage: str = "loaded", **given) -> wire.AdapterState:
    return wire.AdapterState(served_name=version.served_name, state=stage, **given)


@pytest.fixture(autouse=True)
def _fresh(settings, tmp_path: Path, redis_server):
    settings.ADAPTER_DIR = tmp_path / "adapters"
    recent._store = None
    yield
    recent._store = None


def test_an_upload_is_placed_on_every_replica_and_reaches_the_table():
    world = World()
    version = world.upload()
    before = fleet_revision()
    assert reconcile_adapters().startswith("2 placements changed")
    assert fleet_revision() == before + 1
    assert selectors.adapters_wanted() == dict.fromkeys(world.names, (version.served_name,))
    table = compile_table(fleet_snapshot(), lineage="l", epoch=1, created_at=1.0).table
    (told,) = table.adapters
    assert (told.name, told.tenant, told.served_name) == ("sql", "acme", version.served_name)
    assert {f.name: f.size_bytes for f in told.files}["adapter_config.json"] > 0
    assert [e.adapters for e in table.pools[0].endpoints] == [(version.served_name,)] * 2
    assert msgspec.json.decode(msgspec.json.encode(table), type=wire.RoutingTable) == table


def test_a_second_run_changes_nothing():
    world = World()
    world.upload()
    reconcile_adapters()
    events, revision = AuditEvent.objects.count(), fleet_revision()
    assert reconcile_adapters().startswith("nothing to do")
    assert (AuditEvent.objects.count(), fleet_revision()) == (events, revision)


def test_a_new_replica_gets_what_the_others_have():
    world = World()
    version = world.upload()
    reconcile_adapters()
    late = world.add(state=State.WARMING)
    reconcile_adapters()
    assert selectors.adapters_wanted()[late.public_id] == (version.served_name,)


def test_what_agents_tell_is_kept_with_its_age_and_the_engines_words():
    world = World(replicas=3)
    version = world.upload()
    reconcile_adapters()
    good, slow, bad = world.names
    world.tell(good, state(version, for_s=5.0), listed=(version.served_name,))
    world.tell(slow, state(version, "fetching"))
    world.tell(bad, state(version, "failed", message="rank too high\x00", attempts=3))
    reconcile_adapters()
    rows = {row.replica.public_id: row for row in selectors.placements()}
    assert [rows[r].stage for r in (good, slow, bad)] == ["loaded", "fetching", "failed"]
    assert (rows[bad].message, rows[bad].attempts) == ("rank too high\ufffd", 3)
    assert rows[good].stage_since < rows[good].heard_at
    world.tell(good)  # the engine was restarted and is empty
    reconcile_adapters()
    assert AdapterPlacement.objects.get(replica__public_id=good).stage == ""


def test_only_the_agent_on_a_replicas_node_speaks_for_it():
    world = World()
    version = world.upload()
    reconcile_adapters()
    one, other = world.names
    world.agents[one], world.agents[other] = world.agents[other], world.agents[one]
    world.all_loaded(version)
    reconcile_adapters()
    assert {row.stage for row in selectors.placements()} == {""}


def test_without_the_recent_store_placing_goes_on_and_nothing_is_forgotten(redis_server):
    world = World()
    version = world.upload()
    catalog.delete_adapter(public_id=version.adapter.public_id, **WHY)
    world.upload("other", fill=1)
    redis_server.kill()
    recent._store = None
    assert "recent store is gone" in reconcile_adapters()
    assert AdapterVersion.objects.count() == 2


def test_one_bad_adapter_leaves_the_others_alone():
    world = World()
    bad, good = world.upload("bad"), world.upload("good", fill=1)
    reconcile_adapters()
    for replica in world.names:
        failed = state(bad, "failed", message="engine: 400")
        world.tell(replica, failed, state(good), listed=(good.served_name,))
    reconcile_adapters()
    stages = {(p.version_id, p.stage) for p in selectors.placements()}
    assert stages == {(bad.pk, "failed"), (good.pk, "loaded")}
    assert all(name in names for names in selectors.adapters_wanted().values()
               for name in (bad.served_name, good.served_name))  # fmt: skip


def test_the_name_switches_when_the_new_version_is_loaded_and_the_old_one_goes():
    world = World()
    old = world.upload()
    reconcile_adapters()
    world.all_loaded(old)
    reconcile_adapters()
    new = world.upload(fill=1)
    reconcile_adapters()
    table = compile_table(fleet_snapshot(), lineage="l", epoch=1, created_at=1.0).table
    assert {a.served_name: a.active for a in table.adapters} == {
        old.served_name: True,
        new.served_name: False,
    }
    world.all_loaded(old, new)
    assert "1 version switched" in reconcile_adapters()
    reconcile_adapters()
    table = compile_table(fleet_snapshot(), lineage="l", epoch=1, created_at=1.0).table
    assert [(a.served_name, a.active) for a in table.adapters] == [(new.served_name, True)]
    assert selectors.adapters_wanted() == dict.fromkeys(world.names, (new.served_name,))
    assert uploads.folder_of(old.digest).exists()  # an engine holds it still
    world.all_loaded(new)
    assert "1 forgotten" in reconcile_adapters()
    assert not uploads.folder_of(old.digest).exists()
    old.refresh_from_db()
    assert old.removed_at is not None


def test_a_deleted_adapter_is_out_of_the_table_at_once_and_its_files_go_last():
    world = World()
    version = world.upload()
    reconcile_adapters()
    world.all_loaded(version)
    reconcile_adapters()
    catalog.delete_adapter(public_id=version.adapter.public_id, **WHY)
    table = compile_table(fleet_snapshot(), lineage="l", epoch=1, created_at=1.0).table
    assert table.adapters == ()
    assert [e.adapters for e in table.pools[0].endpoints] == [(), ()]
    reconcile_adapters()
    one, other = world.names
    world.tell(one)
    world.tell(other, state(version, "unloading"), listed=(version.served_name,))
    reconcile_adapters()
    assert uploads.folder_of(version.digest).exists()
    world.tell(other)
    reconcile_adapters()
    assert not uploads.folder_of(version.digest).exists()
    assert not Adapter.objects.exists()
    assert not AdapterPlacement.objects.exists()


def test_a_replica_that_is_gone_holds_nothing_back():
    world = World()
    version = world.upload()
    reconcile_adapters()
    world.all_loaded(version)
    reconcile_adapters()
    catalog.delete_adapter(public_id=version.adapter.public_id, **WHY)
    one, other = world.names
    Replica.objects.filter(public_id=other).update(state=State.STOPPED)
    world.tell(one)
    world.tell(other)
    reconcile_adapters()
    assert not Adapter.objects.exists()


def test_a_draining_replica_keeps_what_it_has():
    world = World()
    version = world.upload()
    reconcile_adapters()
    one, _ = world.names
    Replica.objects.filter(public_id=one).update(state=State.DRAINING)
    reconcile_adapters()
    assert selectors.adapters_wanted()[one] == (version.served_name,)
    Replica.objects.filter(public_id=one).update(state=State.STOPPED)
    reconcile_adapters()
    assert one not in selectors.adapters_wanted()


def test_slots_are_respected_and_use_decides():
    world = World(replicas=1, adapter_slots=2)
    first, second, third = (world.upload(f"a{n}", fill=n) for n in range(3))
    reconcile_adapters()
    (held,) = selectors.adapters_wanted().values()
    assert set(held) == {second.served_name, third.served_name}
    now = time.time() + 60
    used = wire.UsageRecord(
        number=1, at=now, request_id="r", tenant="acme", status=503, adapter=first.served_name
    )
    from controlplane.usage.services import book_usage

    Adapter.objects.update(last_used_at=None)
    AdapterVersion.objects.exclude(pk=first.pk).update(created_at="2020-01-01T00:00:00Z")
    book_usage(agent=make_agent(), records=(used,))
    reconcile_adapters()
    (held,) = selectors.adapters_wanted().values()
    assert first.served_name in held
    assert len(held) == 2
