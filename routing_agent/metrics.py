"""What the agent counts: plain integers on the request path, Prometheus text and report deltas off it."""

from __future__ import annotations

import msgspec

from routing_agent import wire
from routing_agent.core.fleet import Fleet


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The one record of a request that ended, however it ended. Durations in seconds."""

    request_id: str
    at: float  # Unix seconds of its end
    tenant: str
    api_key: str = ""
    path: str = ""
    model: str = ""  # public name; "" = never found out
    version: str = ""
    pool: str = ""
    replica: str = ""
    route: str = ""
    reason: str = ""
    stream: bool = False
    status: int = 200  # what the client got; 499 = the client left
    error: str = ""  # our error code, "" if none
    attempts: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False  # the engine gave no usage figures
    was_admitted: bool = False  # counted against the tenant's limits: goes into usage
    queue_wait_s: float = 0.0
    connect_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0


class Metrics:
    """All counters of one agent process."""

    def __init__(self) -> None:
        self.table_applied_at: float | None = None  # monotonic; set by whoever applies tables
        self.gpus: tuple[wire.Gpu, ...] = ()  # newest readings; set by the GPU watcher

    def request_finished(self, record: FinishedRequest) -> None:
        """Count one finished request."""
        raise NotImplementedError

    def render(self, fleet: Fleet, *, now: float) -> str:
        """Give the Prometheus text exposition (format 0.0.4) of everything."""
        raise NotImplementedError

    def take_deltas(self) -> tuple[tuple[wire.PoolDelta, ...], tuple[wire.TenantDelta, ...]]:
        """Give what happened since the last call, and start anew."""
        raise NotImplementedError

    def give_back(
        self, pools: tuple[wire.PoolDelta, ...], tenants: tuple[wire.TenantDelta, ...]
    ) -> None:
        """Put deltas back that could not be reported: the next `take_deltas` has them again."""
        raise NotImplementedError
