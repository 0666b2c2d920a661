"""The queue of a pool whose replicas are all full: by priority, fair share, then cost.

Of the tenants that wait with the most urgent priority the one that was served least comes next
(`core.fairness`), and of its requests the one that came first, where a long prompt counts as come
later: short ones overtake it, but only for so long.

Who has a place may be held: it counts, but its turn cannot come before it is ready.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

from routing_agent.core.fairness import FairShares

T = TypeVar("T")

# 10,000 tokens of prompt, about a second of prefill, let a request count as come a second later.
AGED_S_PER_TOKEN: Final = 1e-4
PACE_MEMORY: Final = 32
SHORTEST_WAIT_S: Final = 1.0
UNKNOWN_WAIT_S: Final = 2.0  # nobody has been served from this line yet
LONGEST_WAIT_S: Final = 60.0


class Wants(NamedTuple):
    """What decides when a waiting request has its turn.

    `since` is when it came, in monotonic seconds; 0 is the most urgent priority.
    """

    priority: int
    since: float
    tenant: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0  # expected


class WaitingLine(Generic[T]):
    """Waiting requests; those that left are skipped when their turn comes."""

    __slots__ = ("_numbers", "_ready", "_turns", "_waiting", "is_due", "pace", "shares")

    def __init__(self, shares: FairShares | None = None) -> None:
        self.pace = Pace()
        self.shares = FairShares() if shares is None else shares
        self.is_due = False  # room was made, and nobody has had their turn yet
        self._waiting: dict[int, T] = {}
        # By priority, then by tenant: heaps of (when it counts as come, ticket).
        self._ready: dict[int, dict[str, list[tuple[float, int]]]] = {}
        self._turns: dict[int, Wants] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, item: T) -> int:
        """Take a place whose turn cannot come yet; give its ticket."""
        ticket = next(self._numbers)
        self._waiting[ticket] = item
        return ticket

    def ready(self, item: T, wants: Wants, *, ticket: int, returns: bool = False) -> None:
        """Wait for a turn from now on: for the first time, or again because there was no room.

        Who `returns` had their turn and never left: their tenant is not lifted for it.
        """
        self._waiting[ticket] = item
        self._turns[ticket] = wants
        tenants = self._ready.setdefault(wants.priority, {})
        heap = tenants.get(wants.tenant)
        if heap is None:
            heap = tenants[wants.tenant] = []
            if not returns:
                self._arrive(wants.tenant)
        heappush(heap, (wants.since + wants.prompt_tokens * AGED_S_PER_TOKEN, ticket))

    def join(self, item: T, wants: Wants) -> int:
        """Take a place and be ready; give its ticket."""
        ticket = self.hold(item)
        self.ready(item, wants, ticket=ticket)
        return ticket

    def leave(self, ticket: int) -> bool:
        """Give a place up; false if it was not held any more."""
        self._turns.pop(ticket, None)
        return self._waiting.pop(ticket, None) is not None

    def waiting(self) -> list[T]:
        """Give all who wait, in no order."""
        return list(self._waiting.values())

    def by_tenant(self) -> dict[str, int]:
        """Count the requests of each tenant that wait for their turn."""
        return dict(Counter(turn.tenant for turn in self._turns.values()))

    def next(self) -> T | None:
        """Take the one whose turn it is out of the line; who binds it charges its tenant."""
        while self._ready:
            priority = min(self._ready)
            tenants = self._ready[priority]
            tenant = min(tenants, key=lambda name: (self.shares.counter(name), tenants[name][0]))
            ticket = self._pop(priority, tenant)
            self._turns.pop(ticket, None)
            item = self._waiting.pop(ticket, None)
            if item is not None:
                return item
        return None

    def turns_over(self) -> None:
        """Note that whose turn came is in, or has come back by `ready`."""

    def _pop(self, priority: int, tenant: str) -> int:
        tenants = self._ready[priority]
        _, ticket = heappop(tenants[tenant])
        if not tenants[tenant]:
            del tenants[tenant]
            if not tenants:
                del self._ready[priority]
            if not any(tenant in others for others in self._ready.values()):
                self.shares.leave(tenant)
        return ticket

    def _arrive(self, tenant: str) -> None:
        """Lift a tenant's counter, unless it waits with another priority already."""
        others: set[str] = set()
        seen = 0
        for tenants in self._ready.values():
            others.update(tenants)
            seen += tenant in tenants
        if seen == 1:
            self.shares.arrive(tenant, others - {tenant})


class Pace:
    """How fast a line moves, by the last places that were served."""

    __slots__ = ("_served",)

    def __init__(self) -> None:
        self._served: deque[float] = deque(maxlen=PACE_MEMORY)

    def served(self, now: float) -> None:
        """Note that somebody was served from the line."""
        self._served.append(now)

    def was_refused(self) -> None:
        """Note that who was served last was not, after all."""
        if self._served:
            self._served.pop()

    def wait_s(self, ahead: int, now: float) -> float:
        """Give when `ahead` places will have been served: what an honest Retry-After says."""
        if len(self._served) < 2:
            return UNKNOWN_WAIT_S
        # Up to now, not up to the last one: a line that stands still gets slower by the second.
        span_s = max(now - self._served[0], 0.001)
        return min(max(ahead * span_s / len(self._served), SHORTEST_WAIT_S), LONGEST_WAIT_S)


def line_limit(*, per_replica: int, healthy: int) -> int:
    """Give how many may wait: so many for each replica that can serve, at least one's worth."""
    return per_replica * max(healthy, 1)
