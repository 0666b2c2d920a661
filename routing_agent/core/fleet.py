"""The fleet as this agent sees it: the current table and the live state behind it.

`Fleet` is the one mutable object that control and proxy share. Tables go in with `apply`; everything
a replica has learned (load, health, breaker) outlives the table as long as its address stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from routing_agent.core.replica import Replica
from routing_agent.core.table import Table, compile_table
from routing_agent.wire import Pool, RoutingTable


@dataclass(frozen=True, slots=True)
class FleetChange:
    """What a table changed, by replica id."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # another endpoint record: state, weight, address, ...
    faults: tuple[str, ...] = ()  # rows of the table that were left out, and why


class Fleet:
    """The current table and the replicas behind it. Empty until the first `apply`."""

    def __init__(self) -> None:
        self.table: Table | None = None
        self.wire_table: RoutingTable | None = None  # as received: for the disk copy and `state`
        self.replicas: dict[str, Replica] = {}
        self.leaving: list[Replica] = []  # gone from the table, streams still running
        self.generation = 0  # grows with every `apply`

    def apply(self, table: RoutingTable, *, now: float, wall: float) -> FleetChange:
        """Make `table` the current one at once; `now` is monotonic, `wall` is Unix seconds.

        Nothing is checked against the table before: order and trust are the receiver's business.
        """
        raise NotImplementedError
