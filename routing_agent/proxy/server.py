"""The traffic port: starts, serves, drains and stops.

proxy = Proxy(fleet, metrics, on_finished=reporter.note)
await proxy.start("127.0.0.1", 9000)
...
cut = await proxy.drain(600.0)      # stop accepting, let requests end; then close
"""

from __future__ import annotations

from collections.abc import Callable

from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.metrics import FinishedRequest, Metrics


class Proxy:
    """Carries OpenAI traffic between clients and the replicas of a `Fleet`.

    New tables need no call here: `Fleet.apply` is enough, the proxy notices within a tick (0.1 s).
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        *,
        chance: Chance | None = None,
        on_finished: Callable[[FinishedRequest], None] | None = None,
    ) -> None:
        self.fleet = fleet
        self.metrics = metrics
        self.on_finished = on_finished

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen for clients; give the port (useful with port 0)."""
        raise NotImplementedError

    async def drain(self, timeout_s: float) -> int:
        """Stop accepting, let running requests end, close; give how many had to be cut off."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close everything at once, with an explicit error to clients still waiting."""
        raise NotImplementedError

    @property
    def open_connections(self) -> int:
        """How many client connections are open."""
        raise NotImplementedError

    @property
    def running_requests(self) -> int:
        """How many requests are queued or under way."""
        raise NotImplementedError

    @property
    def is_draining(self) -> bool:
        """Whether this proxy has stopped accepting."""
        raise NotImplementedError
