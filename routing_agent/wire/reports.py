"""An agent's heartbeat, and the control plane's answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from routing_agent.wire.actions import EngineProcess
from routing_agent.wire.adapters import AdapterState
from routing_agent.wire.base import Count, Message, Ratio, Seconds
from routing_agent.wire.leases import LeaseHealth
from routing_agent.wire.lives import RequestRecord
from routing_agent.wire.nodes import NodeFacts
from routing_agent.wire.shadows import ShadowPair


class PrefixReport(Message, frozen=True, kw_only=True):
    """What one agent knows of a replica's prefix cache and prefill; counters as in the report."""

    blocks: Count = 0  # believed to be cached, of `RoutingTable.block_bytes` each
    capacity_blocks: Count = 0
    prefill_tokens_per_s: Annotated[float, Meta(ge=0)] = 0.0
    waiting_prompts: Count = 0
    backlog_tokens: Count = 0  # of their tokens, what is still to be computed
    # Of prompts whose engine told how much was cached: what the profile had expected.
    expected_cached_tokens_total: Count = 0
    kv_events: str = ""  # how far its engine's KV events are followed; "" = not


class ReplicaReport(Message, frozen=True, kw_only=True):
    """One replica as one agent sees it; counters run since `Report.started_at`."""

    replica: str
    pool: str = ""
    health: Literal["unknown", "healthy", "unhealthy"] = "unknown"
    health_reason: str = ""
    warmed: bool = False  # answered a first completion of the prober
    breaker: Literal["closed", "open", "half_open"] = "closed"
    inflight_requests: Count = 0
    inflight_tokens: Count = 0
    engine_running: Count | None = None
    engine_waiting: Count | None = None
    engine_max_running: Count | None = None  # requests it computes at once
    kv_usage: Ratio | None = None
    kv_capacity_tokens: Count | None = None
    scrape_age_s: float | None = None
    scrape_error: str = ""
    process_started_at: float | None = None
    engine_version: str = ""
    requests_total: Count = 0
    errors_total: Count = 0
    ejections_total: Count = 0
    prompt_tokens_total: Count = 0
    cached_prompt_tokens_total: Count = 0
    output_tokens_total: Count = 0
    preemptions_total: Count | None = None
    # What this agent believes of its prefix cache and of the prompts that wait there for their
    # first token; `None`: its pool's policy does not look at prefixes, or an older agent.
    prefix: PrefixReport | None = None
    adapters: tuple[str, ...] = ()  # what its engine was seen to list: our served names only
    adapter_states: tuple[AdapterState, ...] = ()  # told by the agent on its node alone


Histogram = dict[
    int, int
]  # bucket index (see LATENCY_BOUNDS_S) -> new samples; empty ones left out


class PoolDelta(Message, frozen=True, kw_only=True):
    """What a pool and version did since the previous report."""

    pool: str
    version: str
    requests: dict[str, int] = {}  # by HTTP status as text; "499" = the client left
    ttft: Histogram = {}
    tpot: Histogram = {}
    e2e: Histogram = {}
    queue_wait: Histogram = {}
    prompt_tokens: Count = 0
    cached_prompt_tokens: Count = 0
    output_tokens: Count = 0
    retries: Count = 0
    shed: Count = 0
    # What its engines say of their own queues. Each agent that scrapes an engine tells it: good for
    # percentiles, not for counts.
    engine_queue_wait: Histogram = {}


class PoolWaiting(Message, frozen=True, kw_only=True):
    """Who waits in an agent's queue of one pool now; a pool whose queue is empty is left out."""

    pool: str
    requests: Count = 0
    oldest_s: Annotated[float, Meta(ge=0)] = 0.0  # how long the first of them has waited


class ModelPath(Message, frozen=True, kw_only=True):
    """How often an agent answered for a model by one path since it started, and by what.

    `path` is a class's name, `cascade` (the small model's answer was good enough), `escalated`,
    `direct` (a stream: nothing of it can be judged before it is sent), or `shape`.
    """

    model: str
    path: str
    answered_by: str  # a model, or a pool where the path is `shape`
    requests: Count = 0
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    # Written by the small model and thrown away.
    wasted_tokens: Count = 0


class TenantDelta(Message, frozen=True, kw_only=True):
    """What a tenant did since the previous report."""

    tenant: str
    requests: dict[str, int] = {}
    prompt_tokens: Count = 0
    output_tokens: Count = 0


class UsageRecord(Message, frozen=True, kw_only=True):
    """One finished request, counted once: numbered by the agent, resent until acknowledged."""

    number: Count
    at: float
    request_id: str
    tenant: str
    api_key: str = ""
    model: str = ""
    version: str = ""
    pool: str = ""
    adapter: str = ""  # `Adapter.served_name`, also of a request that found it not loaded
    status: int = 200
    prompt_tokens: Count = 0
    cached_prompt_tokens: Count = 0
    output_tokens: Count = 0
    estimated: bool = False  # the engine gave no usage figures; counted by us


class Placed(Message, frozen=True, kw_only=True):
    """What an agent placed on a replica since its report before, for the other agents."""

    pool: str
    replica: str
    hashes: bytes = b""  # of prompts' beginnings, 8 bytes each, the lowest first
    inserted_blocks: Count = 0  # new to the replica, as that agent believes
    work_tokens: Count = 0  # that the replica has to compute of it
    waiting: Count = 0  # prompts of that agent without a first token, when it told
    waiting_tokens: Annotated[float, Meta(ge=0)] = 0.0


class PeerAddress(Message, frozen=True, kw_only=True):
    """Where an agent hears from the others directly (UDP), and by what they know it is heard.

    The key seals its datagrams; it is made anew by each process and told in its reports alone.
    """

    host: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    key: Annotated[bytes, Meta(min_length=16, max_length=64)]

    def __repr__(self) -> str:
        return f"PeerAddress(host={self.host!r}, port={self.port})"


class AgentPlaced(Message, frozen=True, kw_only=True):
    """What another agent told in its newest report; advisory, heard once by that number."""

    agent: str
    number: Count
    placed: tuple[Placed, ...] = ()
    peer: PeerAddress | None = None  # None: it hears and tells nothing directly


class Report(Message, frozen=True, kw_only=True, tag_field="kind", tag="report"):
    """An agent's heartbeat, every two seconds with jitter.

    `number` grows by one a report and makes a repeated report harmless: deltas are booked once.
    """

    agent: str
    number: Count
    started_at: float
    sent_at: float  # by the agent's clock: for display only, never compared with the server's
    # The deltas below were counted over this long, and that counting ended this long ago: both by
    # the agent's monotonic clock. `None`: an older agent, which does not tell.
    covers_s: Annotated[float, Meta(ge=0, le=3600)] | None = None
    taken_ago_s: Annotated[float, Meta(ge=0)] = 0.0
    uptime_s: float = 0.0
    agent_version: str = ""
    lineage: str = ""
    epoch: Count = 0
    digest: str = ""
    table_source: Literal["none", "push", "pull", "disk"] = "none"
    draining: bool = False
    node: NodeFacts = NodeFacts()
    replicas: tuple[ReplicaReport, ...] = ()
    pools: tuple[PoolDelta, ...] = ()
    tenants: tuple[TenantDelta, ...] = ()
    usage: tuple[UsageRecord, ...] = ()
    records: tuple[RequestRecord, ...] = ()
    shadow_pairs: tuple[ShadowPair, ...] = ()
    engines: tuple[EngineProcess, ...] = ()  # that this agent started
    waiting: tuple[PoolWaiting, ...] | None = None  # None: an older agent, which does not tell
    paths: tuple[ModelPath, ...] = ()
    shadow_copies: dict[str, Count] = {}  # since the agent began, by what became of them
    leases: LeaseHealth | None = None  # None: an older agent, which does not tell
    open_connections: Count = 0
    memory_bytes: Count | None = None
    # 64 KiB of hashes at most. `None`: no pool here is chosen in by prefixes, or an older agent.
    placed: tuple[Placed, ...] | None = None
    peer: PeerAddress | None = None  # for those who get what it placed


class ReportReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="report-reply"):
    """The control plane's answer: what is newest, and what it has safely stored."""

    server_time: float
    lineage: str
    epoch: Count  # newest published; an agent behind pulls
    usage_acknowledged: Count = 0  # records up to this number are stored
    records_acknowledged: Count = 0  # of `Report.records`, those up to this number are stored
    shadow_pairs_acknowledged: Count = 0
    report_interval_s: Seconds = 2.0
    others: tuple[AgentPlaced, ...] = ()  # where `Report.placed` was given
