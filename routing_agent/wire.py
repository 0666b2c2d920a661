"""THE WIRE SCHEMA: every message between the control plane and its routing agents.

Three rules keep old and new programs talking: a new field always has a default, unknown fields are
ignored, and a field's meaning never changes. `tests/contract/` pins the bytes.

Times are Unix seconds (float), durations seconds, sizes bytes or tokens, ratios 0 to 1. Absent is
`None`; an empty string or tuple means "none", never "unknown".
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

SCHEMA: Final = 1

PolicyName = Literal[
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "consistent_hash",
]
OverloadPolicy = Literal["queue", "fallback", "reject"]
EngineName = Literal["vllm", "sglang", "llamacpp", "tgi", "triton", "openai"]
EndpointState = Literal["warming", "ready", "ejected", "draining"]

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]

# Latency histograms are dense: each bound is 1.1 times the one before, so that a percentile read at
# a bucket's geometric middle is within 5 % of the true one (sqrt(1.1) = 1.0488).
LATENCY_BUCKET_GROWTH: Final = 1.1
LATENCY_BOUNDS_S: Final = tuple(0.001 * LATENCY_BUCKET_GROWTH**i for i in range(141))  # to 623 s


def latency_bucket(seconds: float) -> int:
    """Give the index of the first bound that is not below `seconds`; one past the last = +Inf."""
    return bisect_left(LATENCY_BOUNDS_S, seconds)


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all messages are: immutable, keyword-only, unknown fields ignored."""


class PoolSettings(Message, frozen=True, kw_only=True):
    """Every knob of a pool that its agents obey, with the product's defaults.

    This class is the one table of defaults: console, API, documentation and the stand-alone
    router read it (`tests/contract/` holds them equal). Seconds and counts.
    """

    policy: PolicyName = "least_tokens"
    affinity_key: Literal["session", "user"] = "session"
    virtual_nodes: Annotated[int, Meta(ge=1, le=4096)] = 160
    ring_bound: Annotated[float, Meta(ge=1)] = 1.25
    session_lifetime_s: Seconds = 1800.0
    hit_dial: Annotated[float, Meta(ge=0)] = 3.0
    near_tie_ratio: Ratio = 0.05
    near_tie_s: Annotated[float, Meta(ge=0)] = 0.05
    profile_idle_s: Seconds = 1200.0
    profile_blocks: Count | None = None  # None: as many as the replica's KV cache really holds
    kv_soft_usage: Ratio = 0.85
    kv_hard_usage: Ratio = 0.95
    scrape_interval_s: Seconds = 1.0
    scrape_stale_s: Seconds = 5.0
    scrape_dead_s: Seconds = 30.0
    queue_limit_per_replica: Count = 8
    queue_deadline_s: Seconds = 30.0
    ttft_limit_s: Seconds = 30.0
    stall_limit_s: Seconds = 10.0
    connect_limit_s: Seconds = 1.0
    end_to_end_limit_s: Seconds = 600.0
    max_retries: Annotated[int, Meta(ge=0, le=5)] = 2
    retry_backoff_s: Annotated[float, Meta(ge=0)] = 0.1
    retry_jitter: Ratio = 0.2
    retry_budget_ratio: Ratio = 0.1
    breaker_failures: Annotated[int, Meta(ge=1)] = 5
    breaker_window_s: Seconds = 30.0
    breaker_open_s: Seconds = 15.0
    breaker_good_to_close: Annotated[int, Meta(ge=1)] = 2
    eject_ceiling_ratio: Ratio = 0.5
    probe_interval_s: Seconds = 5.0
    probe_timeout_s: Seconds = 3.0
    probe_failures: Annotated[int, Meta(ge=1)] = 3
    probe_recoveries: Annotated[int, Meta(ge=1)] = 2
    slow_start_s: Annotated[float, Meta(ge=0)] = 30.0
    slow_start_from_ratio: Ratio = 0.1
    drain_limit_s: Annotated[float, Meta(gt=0, le=1800)] = 600.0
    broken_stream: Literal["continue", "end"] = "end"
    max_concurrency_per_replica: Count | None = None  # None: no ceiling of our own
    body_limit_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    extra_paths: tuple[str, ...] = ()


class Endpoint(Message, frozen=True, kw_only=True):
    """One replica as a routing table sees it.

    `warming` endpoints are probed and get no traffic; `draining` ones finish what they have;
    `ejected` here means taken out by an operator: health is each agent's own, fresher judgement.
    """

    replica: str  # opaque public id, safe to show to clients
    url: str  # http://host:port, without a trailing slash
    engine: EngineName = "vllm"
    served_model: str = ""  # the name this engine knows the model by; empty = the pool's model
    credential: str = ""  # the engine's own API key; redacted wherever a person can read
    state: EndpointState = "ready"
    node: str = ""
    zone: str = ""
    weight: Annotated[float, Meta(gt=0)] = 1.0  # relative capacity
    ready_at: float = 0.0  # start of the slow-start ramp; 0 = long ago
    kv_capacity_tokens: Count | None = None
    adapters: tuple[str, ...] = ()  # resident LoRA adapters
    gpus: tuple[Count, ...] = ()  # indices of its node's GPUs that it holds


class Pool(Message, frozen=True, kw_only=True):
    """Replicas of one model version under one set of policies."""

    name: str
    model: str
    version: str
    overload: OverloadPolicy  # required: nobody should find out by accident
    fallback_pool: str = ""
    settings: PoolSettings = PoolSettings()
    endpoints: tuple[Endpoint, ...] = ()
    spread_over_zones: bool = True


class WeightedPool(Message, frozen=True, kw_only=True):
    """A pool's share of a model's sessions; weights need not add up to 100, zero is just that."""

    pool: str
    weight: Annotated[float, Meta(ge=0)] = 100.0


class ModelRoute(Message, frozen=True, kw_only=True):
    """A public model name, its aliases, and the pools its sessions are split over."""

    model: str
    aliases: tuple[str, ...] = ()
    split: tuple[WeightedPool, ...] = ()
    bytes_per_token: Annotated[float, Meta(gt=0)] = 4.0
    context_tokens: Count | None = None


class TenantLimits(Message, frozen=True, kw_only=True):
    """What a tenant may use; `None` = unlimited, 0 = nothing.

    `leased`: they are the limits of all agents together, of which each agent takes parts by lease
    calls. Otherwise they are this agent's own.
    """

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    leased: bool = False
    # What holds once the last lease has run out and no control plane answers: each agent goes by
    # the whole limit alone, or refuses.
    when_unreachable: Literal["open", "closed"] = "open"


class Tenant(Message, frozen=True, kw_only=True):
    """Who may call what; `models` empty means every model."""

    name: str
    priority: Annotated[int, Meta(ge=0, le=9)] = 5  # 0 is served first
    models: tuple[str, ...] = ()
    limits: TenantLimits = TenantLimits()
    suspended: bool = False


class ApiKey(Message, frozen=True, kw_only=True):
    """A key a client may present, by the SHA-256 of its text."""

    id: str
    sha256: str  # hex
    tenant: str
    expires_at: float | None = None


class RoutingTable(Message, frozen=True, kw_only=True, tag_field="kind", tag="routing-table"):
    """Everything an agent needs to carry traffic: complete and immutable, replaced as a whole."""

    schema: int = SCHEMA
    lineage: str  # id of the database that numbers the epochs
    epoch: Annotated[int, Meta(ge=1)]
    fleet_revision: Count
    created_at: float = 0.0
    digest: str = ""  # over everything else that matters: see `table_digest`
    hash_seed: int = 0
    block_bytes: Annotated[int, Meta(ge=16)] = 256
    open_access: bool = False  # stand-alone without a key file: any caller is tenant "local"
    models: tuple[ModelRoute, ...] = ()
    pools: tuple[Pool, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    api_keys: tuple[ApiKey, ...] = ()


def table_digest(table: RoutingTable) -> str:
    """Give the SHA-256 (hex) of a table's content, without its number, time and digest."""
    content = msgspec.structs.replace(
        table, lineage="", epoch=1, fleet_revision=0, created_at=0.0, digest=""
    )
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def redacted(table: RoutingTable) -> RoutingTable:
    """Give the table without engine credentials and key hashes, fit for people and logs."""
    pools = tuple(
        msgspec.structs.replace(
            pool,
            endpoints=tuple(
                msgspec.structs.replace(e, credential="***" if e.credential else "")
                for e in pool.endpoints
            ),
        )
        for pool in table.pools
    )
    keys = tuple(msgspec.structs.replace(k, sha256="***") for k in table.api_keys)
    return msgspec.structs.replace(table, pools=pools, api_keys=keys)


class TableReceipt(Message, frozen=True, kw_only=True, tag_field="kind", tag="table-receipt"):
    """An agent's answer to a table: what it did with it, and what it runs now."""

    outcome: Literal["applied", "already_there", "refused_older", "refused_lineage", "invalid"]
    lineage: str = ""
    epoch: Count = 0  # what the agent runs after this
    digest: str = ""
    detail: str = ""  # for `invalid`: the path of the first bad field


class Gpu(Message, frozen=True, kw_only=True):
    """One GPU, or one MIG slice of it. `None` = the node cannot tell (no NVML, simulated)."""

    index: Count
    model: str
    memory_bytes: Count = 0
    mig_profile: str = ""
    memory_used_bytes: Count | None = None
    utilization_ratio: Ratio | None = None
    temperature_celsius: float | None = None
    simulated: bool = False


class NodeFacts(Message, frozen=True, kw_only=True):
    """What an agent knows of the machine it runs on."""

    hostname: str = ""
    zone: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[Gpu, ...] = ()


class RegisterRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="register"):
    """An agent's first call, made with a one-time token."""

    token: str
    name: str  # the node's name
    traffic_url: str
    admin_url: str
    agent_version: str = ""
    node: NodeFacts = NodeFacts()


class RegisterReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="registered"):
    """What an agent keeps for good: its identity, its token and the key it will trust."""

    agent: str
    agent_token: str
    public_key: str  # Ed25519, base64
    lineage: str
    server_time: float
    report_interval_s: Seconds = 2.0


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
    adapters: tuple[str, ...] = ()


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
    adapter: str = ""
    status: int = 200
    prompt_tokens: Count = 0
    cached_prompt_tokens: Count = 0
    output_tokens: Count = 0
    estimated: bool = False  # the engine gave no usage figures; counted by us


class Candidate(Message, frozen=True, kw_only=True):
    """One replica in an explanation; `excluded` says why it could not be chosen."""

    replica: str
    score: float | None = None
    terms: dict[str, float] = {}
    excluded: str = ""


Stage = Literal["RECEIVED", "QUEUED", "BOUND", "PREFILL", "DECODE", "DONE", "FAILED"]

# Of the requests that do not fail this share is kept, by a hash of their id: all agents agree.
SAMPLE_RATIO: Final = 0.01

# What each part of a request may take, as published for a 7B model with 512 tokens in.
BUDGET_NETWORK_S: Final = 0.005
BUDGET_QUEUE_S: Final = 0.080  # balancing and the queue
BUDGET_SCHEDULING_S: Final = 0.020  # in the engine
BUDGET_PREFILL_S: Final = 0.120
BUDGET_DECODE_TOKEN_S: Final = 0.025


class StageRecord(Message, frozen=True, kw_only=True):
    """One stretch of a request's life; together they cover it without a gap."""

    stage: Stage
    at: float  # Unix seconds of its beginning, to the millisecond
    duration_s: float = 0.0
    estimated: bool = False  # its beginning or end cannot be seen from outside the engine
    reason: str = ""


class AttemptRecord(Message, frozen=True, kw_only=True):
    """One try at one replica: why it was chosen, what became of it."""

    replica: str
    at: float
    duration_s: float = 0.0
    route: str = ""
    chosen_because: str = ""
    outcome: str = "good"  # good, left, cut, or the kind of failure
    reason: str = ""  # what went wrong, in our words: never the engine's, which may quote prompts
    next: str = ""  # why it was tried again, or not
    span_id: str = ""  # what the engine got as its parent


class DecisionRecord(Message, frozen=True, kw_only=True):
    """The last choice made for a request. Candidates are told for sampled and retried ones only."""

    pool: str = ""
    version: str = ""
    policy: str = ""
    replica: str = ""
    route: str = ""
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    candidates_total: Count = 0  # of large pools only some are told


class RequestRecord(Message, frozen=True, kw_only=True):
    """The life of one request that was kept. Numbered by the agent, resent until acknowledged.

    `uid` is unlike that of any other request; `request_id` may be the client's own and may repeat.
    """

    number: Count = 0
    uid: str
    request_id: str
    received_at: float  # Unix seconds, to the millisecond
    kept: Literal["failure", "sampled", "traced"] = "sampled"
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    tenant: str = ""
    api_key: str = ""  # its id
    model: str = ""
    adapter: str = ""
    path: str = ""
    stream: bool = False
    status: int = 200
    error: str = ""
    detail: str = ""
    decision: DecisionRecord = DecisionRecord()
    stages: tuple[StageRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    prompt_tokens: Count = 0
    cached_prompt_tokens: Count = 0
    output_tokens: Count = 0
    estimated: bool = False
    queue_wait_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0


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
    open_connections: Count = 0
    memory_bytes: Count | None = None


class ReportReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="report-reply"):
    """The control plane's answer: what is newest, and what it has safely stored."""

    server_time: float
    lineage: str
    epoch: Count  # newest published; an agent behind pulls
    usage_acknowledged: Count = 0  # records up to this number are stored
    records_acknowledged: Count = 0  # of `Report.records`, those up to this number are stored
    report_interval_s: Seconds = 2.0


# A lease that is not renewed for this long by the control plane's clock is free again.
LEASE_S: Final = 15.0


class LeaseAsk(Message, frozen=True, kw_only=True):
    """What an agent wants of one tenant's limits, and what it gives back.

    `slots` is what the agent holds from the moment it wrote this: it has given back the rest.
    Returned amounts may be negative: more was used than had been taken.
    """

    tenant: str
    slots: Count = 0
    in_use: Count = 0
    more_slots: Count = 0
    requests: Count = 0  # for requests that wait
    requests_ahead: Count = 0  # for those that are likely to come
    requests_returned: int = 0
    tokens: Count = 0
    tokens_ahead: Count = 0
    tokens_returned: int = 0


class LeaseRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="lease"):
    """A lease call. Sent again under the same mark until it is answered, then booked once.

    `start` grows with every start of the agent, `serial` with every call.
    """

    agent: str
    start: Count
    serial: Count
    asks: tuple[LeaseAsk, ...] = ()


class LeaseGrant(Message, frozen=True, kw_only=True):
    """What an agent may use of one tenant's limits from now on."""

    tenant: str
    slots: Count = 0  # held in all
    keep: Count | None = None  # others wait: above this, a slot that becomes free is given back
    requests: Count = 0  # to be added to what is in hand
    requests_left: float = 0.0  # with the control plane; below 0: used beyond the limit
    tokens: Count = 0
    tokens_left: float = 0.0
    reason: str = ""


class LeaseReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="leased"):
    """The answer to a lease call, one grant an ask. Counts from when the call was sent."""

    grants: tuple[LeaseGrant, ...] = ()
    lease_s: Seconds = LEASE_S


class ExplainRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="explain"):
    """Ask where a request would go, without sending it."""

    model: str
    tenant: str = ""
    session: str = ""
    prompt: str = ""
    max_tokens: Count | None = None


class Explanation(Message, frozen=True, kw_only=True, tag_field="kind", tag="explanation"):
    """Where a request would go, and why."""

    pool: str = ""
    version: str = ""
    policy: str = ""
    replica: str = ""
    route: str = ""  # the value of x-signalbox-route
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    error: str = ""


# Signed requests (pushes, actions and every other call to an agent's admin port).
SIGNATURE_HEADER: Final = "x-signalbox-signature"  # base64 Ed25519
TIME_HEADER: Final = "x-signalbox-time"  # Unix seconds, decimal
NONCE_HEADER: Final = "x-signalbox-nonce"  # 128 random bits, hex
SIGNATURE_WINDOW_S: Final = 60.0


def signed_bytes(*, method: str, path: str, body: bytes, time: str, nonce: str) -> bytes:
    """Give the exact bytes a signature covers."""
    digest = hashlib.sha256(body).hexdigest()
    return f"signalbox-v1\n{method}\n{path}\n{digest}\n{time}\n{nonce}".encode()
