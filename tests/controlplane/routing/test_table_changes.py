"""What differs between two tables, in words an operator reads."""

from __future__ import annotations

from controlplane.routing.views import table_changes
from routing_agent import wire


def table(*weights: float) -> wire.RoutingTable:
    pools = (wire.WeightedPool(pool=f"p{i}", weight=w) for i, w in enumerate(weights))
    return wire.RoutingTable(
        lineage="l",
        epoch=1,
        fleet_revision=1,
        models=(wire.ModelRoute(model="m", split=tuple(pools)),),
    )


def test_a_split_that_moved_is_told_without_the_names_of_our_classes():
    told = table_changes(table(50.0, 50.0), table(100.0))
    assert told == [
        "model m: split pool p0, weight 50.0; pool p1, weight 50.0 → pool p0, weight 100.0"
    ]


def test_tables_that_say_the_same_differ_in_nothing():
    assert table_changes(table(1.0), table(1.0)) == []
