"""Which cells of the shared memory belong to whom; given out by the supervisor."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from routing_agent.wire import Endpoint, RoutingTable
from routing_agent.workers.memory import POOL_CELLS, POOLS, REPLICAS, TENANTS, SharedMemory

log = structlog.get_logger()


class Slots(msgspec.Struct):
    """Cells by the names of those they belong to."""

    replicas: dict[str, int]  # by `replica_key`
    tenants: dict[str, int]
    pools: dict[str, int]


_Slots = dict[str, int]


def replica_key(endpoint: Endpoint) -> str:
    """Tell a replica's runtimes apart: another address is another engine."""
    return f"{endpoint.replica}|{endpoint.url}"


class SlotGiver:
    """Gives slots to what tables name, and takes those back that nobody uses any more."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.slots = Slots({}, {}, {})
        self._gone: set[tuple[str, str]] = set()  # left the table before this one

    @property
    def used(self) -> tuple[int, int, int]:
        """Up to where replicas, tenants and pools have slots."""
        slots = self.slots
        return _end(slots.replicas), _end(slots.tenants), _end(slots.pools)

    def follow(self, table: RoutingTable) -> Slots:
        """Give everything that a table names a slot; gives all there are."""
        old = self.slots
        replicas = [replica_key(e) for pool in table.pools for e in pool.endpoints]
        gone: set[tuple[str, str]] = set()

        def kept(kind: str, slots: _Slots, names: Iterable[str], most: int) -> _Slots:
            current = set(names)
            left = {name for name in slots if name not in current}
            free = {n for n in left if (kind, n) in self._gone and self._is_empty(kind, slots[n])}
            gone.update((kind, name) for name in left - free)
            result = {name: slot for name, slot in slots.items() if name not in free}
            return _with_new(kind, result, current, most)

        self.slots = Slots(
            kept("replica", old.replicas, replicas, REPLICAS),
            kept("tenant", old.tenants, (t.name for t in table.tenants), TENANTS),
            kept("pool", old.pools, (p.name for p in table.pools), POOLS),
        )
        self._gone = gone
        return self.slots

    def _is_empty(self, kind: str, slot: int) -> bool:
        memory = self._memory
        if kind == "replica":
            first = memory.replica(slot)
            row = memory.ints[first : first + memory.replica_words]
        elif kind == "pool":
            first = memory.pool(slot)
            row = memory.ints[first : first + memory.pool_words : POOL_CELLS]
        else:
            first = memory.gate(slot)
            row = memory.ints[first : first + memory.workers]
        return not any(row.tolist())


def _with_new(kind: str, slots: _Slots, names: set[str], most: int) -> _Slots:
    new = sorted(names - slots.keys())
    free = iter(sorted(set(range(most)) - set(slots.values()))) if new else iter(())
    left_out = 0
    for name in new:
        slot = next(free, None)
        if slot is None:
            left_out += 1
        else:
            slots[name] = slot
    if left_out:
        log.warning("not_shared_between_workers", kind=kind, left_out=left_out, most=most)
    return slots


def _end(slots: dict[str, int]) -> int:
    return max(slots.values(), default=-1) + 1
