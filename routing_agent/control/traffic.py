"""What reports and the admin port tell about the traffic port."""

from __future__ import annotations

from typing import Protocol

from routing_agent.wire import PoolWaiting


class TrafficPort(Protocol):
    """What the admin port tells about the traffic port."""

    @property
    def open_connections(self) -> int:
        """How many client connections are open."""
        ...

    @property
    def running_requests(self) -> int:
        """How many requests are queued or under way."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether it has stopped accepting."""
        ...

    def waiting(self) -> tuple[PoolWaiting, ...]:
        """Say who waits in which pool's queue."""
        ...
