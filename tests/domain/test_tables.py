"""The table compiler: complete, stable, and never emptied by one bad row."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.fleet_snapshot import (
    AdapterRow,
    FleetSnapshot,
    KeyRow,
    ModelRow,
    SplitRow,
    TenantRow,
)
from controlplane.domain.replica_states import State
from controlplane.domain.tables import Compiled, compile_table
from routing_agent import wire
from tests.builders import LINEAGE, pool_row, replica_row, snapshot


def compiled(fleet: FleetSnapshot, epoch: int = 1) -> Compiled:
    return compile_table(fleet, lineage=LINEAGE, epoch=epoch, created_at=1.0)


def test_a_sound_fleet_is_compiled_whole():
    result = compiled(snapshot(revision=7), epoch=3)
    table = result.table
    assert result.left_out == ()
    assert (table.epoch, table.fleet_revision, table.lineage) == (3, 7, LINEAGE)
    assert table.models[0].split == (wire.WeightedPool(pool="chat", weight=100.0),)
    assert [e.replica for e in table.pools[0].endpoints] == ["rpl-1"]
    assert table.api_keys[0].tenant == "acme"
    assert table.digest == wire.table_digest(table)


def test_a_table_reads_back_as_it_was_written():
    table = compiled(snapshot()).table
    assert msgspec.json.decode(msgspec.json.encode(table), type=wire.RoutingTable) == table


@pytest.mark.parametrize(
    ("state", "by_operator", "seen"),
    [
        (State.LOADING, False, "warming"),
        (State.WARMING, False, "warming"),
        (State.WAKING, False, "warming"),
        (State.READY, False, "ready"),
        (State.EJECTED, False, "ready"),  # agents judge health themselves
        (State.EJECTED, True, "ejected"),
        (State.DRAINING, False, "draining"),
        (State.PENDING, False, None),
        (State.SLEEPING, False, None),
        (State.STOPPED, False, None),
        (State.FAILED, False, None),
    ],
)
def test_each_state_has_its_place_in_the_table(state, by_operator, seen):
    row = replica_row(state=state, ejected_by_operator=by_operator)
    endpoints = compiled(snapshot(replicas=(row,))).table.pools[0].endpoints
    assert [e.state for e in endpoints] == ([seen] if seen else [])


def test_the_digest_does_not_depend_on_the_order_of_rows_nor_on_number_and_time():
    replicas = (replica_row("rpl-1"), replica_row("rpl-2"))
    one = compile_table(
        snapshot(replicas=replicas, revision=1), lineage=LINEAGE, epoch=1, created_at=1.0
    )
    other = compile_table(
        snapshot(replicas=replicas[::-1], revision=9), lineage=LINEAGE, epoch=8, created_at=2.0
    )
    assert one.table.digest == other.table.digest


def test_a_bad_replica_is_left_out_and_named():
    bad = replica_row("rpl-bad", url="http://::1:9001")
    result = compiled(snapshot(replicas=(replica_row(), bad)))
    assert [e.replica for e in result.table.pools[0].endpoints] == ["rpl-1"]
    assert result.left_out[0].object == "replica rpl-bad"
    assert "brackets" in result.left_out[0].problem


@pytest.mark.parametrize(
    ("field", "value"), [("engine", "nope"), ("weight", 0.0), ("weight", math.nan)]
)
def test_a_replica_that_breaks_the_schema_is_left_out(field, value):
    result = compiled(snapshot(replicas=(replica_row(**{field: value}),)))
    assert result.table.pools[0].endpoints == ()
    assert result.left_out[0].object == "replica rpl-1"


def test_a_bad_pool_is_left_out_with_the_splits_that_name_it():
    result = compiled(snapshot(pools=(pool_row(overload="nope"), pool_row("spare"))))
    assert [p.name for p in result.table.pools] == ["spare"]
    assert {row.object for row in result.left_out} == {"pool chat", "split m to chat"}


def test_a_bad_setting_falls_back_to_its_default_and_is_named():
    row = pool_row(overrides={"max_retries": 99, "ttft_limit_s": 5.0})
    result = compiled(snapshot(pools=(row,)))
    settings = result.table.pools[0].settings
    assert (settings.max_retries, settings.ttft_limit_s) == (2, 5.0)
    assert result.left_out[0].object == "setting of pool chat"
    assert "max_retries" in result.left_out[0].problem


def test_overrides_that_are_no_mapping_leave_the_defaults():
    result = compiled(snapshot(pools=(pool_row(overrides=[1]),)))
    assert result.table.pools[0].settings == wire.PoolSettings()
    assert "not a mapping" in result.left_out[0].problem


def test_a_pool_whose_fallback_is_missing_refuses_instead():
    row = pool_row(overload="fallback", fallback_pool="gone")
    result = compiled(snapshot(pools=(row,)))
    assert (result.table.pools[0].overload, result.table.pools[0].fallback_pool) == ("reject", "")
    assert result.left_out[0].object == "fallback of pool chat"


def test_a_pool_keeps_a_fallback_that_is_there():
    row = pool_row(overload="fallback", fallback_pool="spare")
    result = compiled(snapshot(pools=(row, pool_row("spare"))))
    assert result.table.pools[0].fallback_pool == "spare"
    assert result.left_out == ()


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        (SplitRow(model="m", pool="gone", weight=1.0), "not in the table"),
        (SplitRow(model="m", pool="other", weight=1.0), "serves 'n'"),
        (SplitRow(model="m", pool="chat", weight=math.nan), "not a number"),
        (SplitRow(model="m", pool="chat", weight=-1.0), "not a number"),
    ],
)
def test_a_split_that_cannot_be_is_left_out(split, problem):
    fleet = snapshot(pools=(pool_row(), pool_row("other", model="n")), splits=(split,))
    result = compiled(fleet)
    assert result.table.models[0].split == ()
    assert problem in result.left_out[0].problem


def test_zero_stays_zero():
    fleet = snapshot(splits=(SplitRow(model="m", pool="chat", weight=0.0),))
    assert compiled(fleet).table.models[0].split[0].weight == 0.0


def test_an_alias_two_models_claim_goes_to_the_first_and_is_named():
    models = (ModelRow(name="a", aliases=["chat", "b", "a"]), ModelRow(name="b", aliases=["chat"]))
    result = compiled(snapshot(models=models))
    assert [m.aliases for m in result.table.models] == [("chat",), ()]
    assert [row.object for row in result.left_out] == [
        "alias b of model a",
        "alias chat of model b",
    ]


def test_a_context_is_the_smallest_of_the_models_pools():
    pools = (pool_row(context_tokens=8192), pool_row("big", context_tokens=32768), pool_row("x"))
    splits = tuple(SplitRow(model="m", pool=p.slug, weight=1.0) for p in pools)
    assert compiled(snapshot(pools=pools, splits=splits)).table.models[0].context_tokens == 8192


@pytest.mark.parametrize("stored", [5, "chat", [1], None])
def test_stored_lists_of_another_shape_cost_only_their_row(stored):
    fleet = snapshot(
        models=(ModelRow(name="m"), ModelRow(name="z", aliases=stored)),
        tenants=(TenantRow(slug="acme"), TenantRow(slug="odd", models=stored)),
    )
    result = compiled(fleet)
    assert [m.model for m in result.table.models] == ["m"]
    assert [t.name for t in result.table.tenants] == ["acme"]
    assert {row.object for row in result.left_out} == {"model z", "tenant odd"}


def test_a_key_without_tenant_or_with_a_bad_hash_is_left_out():
    keys = (
        KeyRow(public_id="key-1", sha256="a" * 64, tenant="gone"),
        KeyRow(public_id="key-2", sha256="xyz", tenant="acme"),
    )
    result = compiled(snapshot(keys=keys))
    assert result.table.api_keys == ()
    assert [row.object for row in result.left_out] == ["key key-1", "key key-2"]


junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.text()))


@settings(max_examples=40)
@given(url=st.text(), engine=st.text(), weight=st.floats(), overrides=junk, aliases=junk)
def test_whatever_one_row_holds_the_others_come_through(url, engine, weight, overrides, aliases):
    fleet = snapshot(
        models=(ModelRow(name="m"), ModelRow(name="z", aliases=aliases)),
        pools=(pool_row(), pool_row("z", overrides=overrides)),
        replicas=(replica_row(), replica_row("rpl-z", url=url, engine=engine, weight=weight)),
    )
    table = compiled(fleet).table
    assert "m" in [m.model for m in table.models]
    assert "rpl-1" in [e.replica for e in table.pools[0].endpoints]
    assert msgspec.json.decode(msgspec.json.encode(table), type=wire.RoutingTable) == table


def adapter_row(name="sql", **given) -> AdapterRow:
    defaults = {
        "tenant": "acme",
        "model": "m",
        "digest": "a" * 64,
        "files": [{"name": "adapter_config.json", "size_bytes": 1, "sha256": "b" * 64}],
        "served_name": f"acme.{name}.aaaaaaaaaaaa",
    }
    return AdapterRow(name=name, **(defaults | given))


def test_adapters_are_in_the_table_and_on_the_replicas_that_are_to_hold_them():
    row = adapter_row(shared_with=("globex", "nobody"), pinned=True, active=False)
    held = replica_row(adapters=(row.served_name, "acme.gone.aaaaaaaaaaaa"))
    tenants = (TenantRow(slug="acme"), TenantRow(slug="globex"))
    result = compiled(snapshot(adapters=(row,), replicas=(held,), tenants=tenants))
    (told,) = result.table.adapters
    assert (told.shared_with, told.pinned, told.active) == (("globex",), True, False)
    assert told.files[0].sha256 == "b" * 64
    assert result.table.pools[0].endpoints[0].adapters == (row.served_name,)
    assert result.left_out == ()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "none"},
        {"tenant": "none"},
        {"digest": "short"},
        {"served_name": "../x.aaaaaaaaaaaa"},
        {"served_name": "no-hash"},
        {"files": [{"name": "../x", "size_bytes": 1, "sha256": "b" * 64}]},
        {"files": 5},
    ],
)
def test_a_bad_adapter_is_left_out_named_and_on_no_replica(change):
    bad, good = adapter_row("bad", **change), adapter_row("good")
    held = replica_row(adapters=(bad.served_name, good.served_name))
    result = compiled(snapshot(adapters=(bad, good), replicas=(held,)))
    assert [a.name for a in result.table.adapters] == ["good"]
    assert result.table.pools[0].endpoints[0].adapters == (good.served_name,)
    assert [row.object for row in result.left_out] == [f"adapter {bad.served_name}"]
