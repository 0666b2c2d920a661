"""The queue of one process for a pool for which others have queues too.

Each process keeps its own requests; how many wait and whose turn would be next is in the cells, so
that the limit holds over all, and room that one process makes goes to whoever comes first. Only who
arrives in the moment until that one has heard of it may be quicker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from routing_agent.core.fairness import FairShares
from routing_agent.core.waiting import WaitingLine, Wants
from routing_agent.workers.memory import (
    COME_AT,
    COUNTER,
    OLDEST_AT,
    POOL_CELLS,
    POOL_LOCKS,
    PRIORITY,
    WAITING,
    WORD,
    SharedMemory,
)

T = TypeVar("T")

_MICROSECONDS: Final = 1e6


class SharedShares(FairShares):
    """The counters of one pool's tenants, of which other processes are told."""

    __slots__ = ("on_charge",)

    def __init__(self) -> None:
        super().__init__()
        self.on_charge: Callable[[str, float], None] | None = None

    def serve(self, tenant: str, prompt_tokens: int, output_tokens: int) -> float:
        """Charge a tenant for a request that leaves the queue; give the charge."""
        charge = super().serve(tenant, prompt_tokens, output_tokens)
        if self.on_charge is not None:
            self.on_charge(tenant, charge)
        return charge

    def settle(self, tenant: str, charged: float, prompt_tokens: int, output_tokens: int) -> None:
        """Correct a charge to what was really used, now that the answer is over."""
        before = self.counter(tenant)
        super().settle(tenant, charged, prompt_tokens, output_tokens)
        if self.on_charge is not None:
            self.on_charge(tenant, self.counter(tenant) - before)


class Places:
    """The cells of a pool's queue."""

    __slots__ = ("_ints", "_lock", "_memory", "_own", "_row", "_row_end", "_worker")

    def __init__(self, memory: SharedMemory, slot: int, worker: int) -> None:
        self._memory = memory
        self._ints = memory.ints
        self._lock = POOL_LOCKS + slot
        self._row = memory.pool(slot)
        self._row_end = self._row + memory.pool_words
        self._worker = worker
        self._own = self._row + worker * POOL_CELLS

    def take(self, waiting: int, limit: int) -> bool:
        """Take a place beside `waiting` of this process's own, if all have fewer than `limit`."""
        self._memory.lock(self._lock)
        try:
            ints = self._ints
            others = sum(ints[self._row : self._row_end : POOL_CELLS].tolist())
            if others - ints[self._own + WAITING] + waiting >= limit:
                return False
            ints[self._own + WAITING] = waiting + 1
            return True
        finally:
            self._memory.unlock(self._lock)

    def tell(self, waiting: int, head: tuple[int, float, float] | None) -> None:
        """Tell how many have a place here, and what decides about the first that is ready."""
        ints, own = self._ints, self._own
        if head is not None:
            priority, counter, come_at = head
            ints[own + PRIORITY] = priority
            ints[own + COUNTER] = int(counter)
            ints[own + COME_AT] = max(int(come_at * _MICROSECONDS), 1)
        else:
            ints[own + COME_AT] = 0
            if not waiting:
                ints[own + OLDEST_AT] = 0
        ints[own + WAITING] = waiting

    def first(self) -> int | None:
        """Give the worker where somebody waits who comes before all others; None: nobody does."""
        row: tuple[int, ...] = self._memory.pool_row.unpack_from(
            self._memory.bytes, self._row * WORD
        )
        best: tuple[int, int, int] | None = None
        found: int | None = None
        for worker in range(self._memory.workers):
            at = worker * POOL_CELLS
            if row[at + WAITING] and row[at + COME_AT]:
                head = (row[at + PRIORITY], row[at + COUNTER], row[at + COME_AT])
                if best is None or head < best or (head == best and worker == self._worker):
                    best, found = head, worker
        return found


class SharedLine(WaitingLine[T]):
    """The requests of this process that wait; the place of one whose turn is tried stays taken."""

    __slots__ = ("_in_turn", "_places")

    def __init__(self, shares: FairShares, places: Places) -> None:
        super().__init__(shares)
        self._places = places
        self._in_turn = 0

    def hold(self, item: T) -> int:
        """Take a place whose turn cannot come yet; give its ticket."""
        ticket = super().hold(item)
        self._tell()
        return ticket

    def ready(self, item: T, wants: Wants, *, ticket: int, returns: bool = False) -> None:
        """Wait for a turn from now on."""
        super().ready(item, wants, ticket=ticket, returns=returns)
        if returns:
            self._in_turn -= 1
        self._tell()

    def leave(self, ticket: int) -> bool:
        """Give a place up; false if it was not held any more."""
        left = super().leave(ticket)
        self._tell()
        return left

    def next(self) -> T | None:
        """Take the one whose turn it is out of the line."""
        item = super().next()
        if item is not None:
            self._in_turn += 1
        self._tell()
        return item

    def turns_over(self) -> None:
        """Free the places of those that came in."""
        self._in_turn = 0
        self._tell()

    def _tell(self) -> None:
        head = None
        if self._ready:
            priority = min(self._ready)
            tenants = self._ready[priority]
            head = min(
                (priority, self.shares.counter(name), heap[0][0]) for name, heap in tenants.items()
            )
        self._places.tell(len(self) + self._in_turn, head)
