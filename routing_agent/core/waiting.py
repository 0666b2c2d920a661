"""The queue of a pool whose replicas are all full: by priority, then by when a request came.

Who has a place may be held: it counts, but its turn cannot come before it is ready.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

T = TypeVar("T")

PACE_MEMORY: Final = 32
SHORTEST_WAIT_S: Final = 1.0
UNKNOWN_WAIT_S: Final = 2.0  # nobody has been served from this line yet
LONGEST_WAIT_S: Final = 60.0


class WaitingLine(Generic[T]):
    """Waiting requests; those that left are skipped when their turn comes."""

    __slots__ = ("_heap", "_numbers", "_waiting", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self._heap: list[tuple[int, float, int]] = []
        self._waiting: dict[int, T] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, item: T) -> int:
        """Take a place whose turn cannot come yet; give its ticket."""
        ticket = next(self._numbers)
        self._waiting[ticket] = item
        return ticket

    def ready(self, item: T, *, priority: int, since: float, ticket: int) -> None:
        """Wait for a turn from now on: for the first time, or again because there was no room.

        0 is the most urgent priority; `since` is when the request came, in monotonic seconds.
        """
        self._waiting[ticket] = item
        heappush(self._heap, (priority, since, ticket))

    def join(self, item: T, *, priority: int, since: float) -> int:
        """Take a place and be ready; give its ticket."""
        ticket = self.hold(item)
        self.ready(item, priority=priority, since=since, ticket=ticket)
        return ticket

    def leave(self, ticket: int) -> bool:
        """Give a place up; false if it was not held any more."""
        return self._waiting.pop(ticket, None) is not None

    def waiting(self) -> list[T]:
        """Give all who wait, in no order."""
        return list(self._waiting.values())

    def next(self) -> T | None:
        """Take the one whose turn it is out of the line."""
        while self._heap:
            _, _, ticket = heappop(self._heap)
            item = self._waiting.pop(ticket, None)
            if item is not None:
                return item
        return None


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
