"""THE WIRE SCHEMA: every message between the control plane and its routing agents.

Three rules keep old and new programs talking: a new field always has a default, unknown fields are
ignored, and a field's meaning never changes. `tests/contract/` pins the bytes.

Times are Unix seconds (float), durations seconds, sizes bytes or tokens, ratios 0 to 1. Absent is
`None`; an empty string or tuple means "none", never "unknown".
"""

from routing_agent.wire.actions import (
    Action as Action,
)
from routing_agent.wire.actions import (
    ActionReceipt as ActionReceipt,
)
from routing_agent.wire.actions import (
    EngineProcess as EngineProcess,
)
from routing_agent.wire.actions import (
    ExecutorFacts as ExecutorFacts,
)
from routing_agent.wire.actions import (
    ProgramName as ProgramName,
)
from routing_agent.wire.actions import (
    StartEngine as StartEngine,
)
from routing_agent.wire.actions import (
    StopEngine as StopEngine,
)
from routing_agent.wire.adapters import (
    ADAPTER_FILES as ADAPTER_FILES,
)
from routing_agent.wire.adapters import (
    SERVED_NAME_DIGITS as SERVED_NAME_DIGITS,
)
from routing_agent.wire.adapters import (
    Adapter as Adapter,
)
from routing_agent.wire.adapters import (
    AdapterFile as AdapterFile,
)
from routing_agent.wire.adapters import (
    AdapterFileName as AdapterFileName,
)
from routing_agent.wire.adapters import (
    AdapterStage as AdapterStage,
)
from routing_agent.wire.adapters import (
    AdapterState as AdapterState,
)
from routing_agent.wire.adapters import (
    Sha256 as Sha256,
)
from routing_agent.wire.base import (
    LATENCY_BOUNDS_S as LATENCY_BOUNDS_S,
)
from routing_agent.wire.base import (
    LATENCY_BUCKET_GROWTH as LATENCY_BUCKET_GROWTH,
)
from routing_agent.wire.base import (
    Count as Count,
)
from routing_agent.wire.base import (
    Message as Message,
)
from routing_agent.wire.base import (
    Ratio as Ratio,
)
from routing_agent.wire.base import (
    Seconds as Seconds,
)
from routing_agent.wire.base import (
    latency_bucket as latency_bucket,
)
from routing_agent.wire.explain import (
    ExplainMessage as ExplainMessage,
)
from routing_agent.wire.explain import (
    ExplainRequest as ExplainRequest,
)
from routing_agent.wire.explain import (
    Explanation as Explanation,
)
from routing_agent.wire.leases import (
    LEASE_S as LEASE_S,
)
from routing_agent.wire.leases import (
    LeaseAsk as LeaseAsk,
)
from routing_agent.wire.leases import (
    LeaseGrant as LeaseGrant,
)
from routing_agent.wire.leases import (
    LeaseHealth as LeaseHealth,
)
from routing_agent.wire.leases import (
    LeaseReply as LeaseReply,
)
from routing_agent.wire.leases import (
    LeaseRequest as LeaseRequest,
)
from routing_agent.wire.lives import (
    BUDGET_DECODE_TOKEN_S as BUDGET_DECODE_TOKEN_S,
)
from routing_agent.wire.lives import (
    BUDGET_NETWORK_S as BUDGET_NETWORK_S,
)
from routing_agent.wire.lives import (
    BUDGET_PREFILL_S as BUDGET_PREFILL_S,
)
from routing_agent.wire.lives import (
    BUDGET_QUEUE_S as BUDGET_QUEUE_S,
)
from routing_agent.wire.lives import (
    BUDGET_SCHEDULING_S as BUDGET_SCHEDULING_S,
)
from routing_agent.wire.lives import (
    SAMPLE_RATIO as SAMPLE_RATIO,
)
from routing_agent.wire.lives import (
    AttemptRecord as AttemptRecord,
)
from routing_agent.wire.lives import (
    Candidate as Candidate,
)
from routing_agent.wire.lives import (
    DecisionRecord as DecisionRecord,
)
from routing_agent.wire.lives import (
    RequestRecord as RequestRecord,
)
from routing_agent.wire.lives import (
    Stage as Stage,
)
from routing_agent.wire.lives import (
    StageRecord as StageRecord,
)
from routing_agent.wire.nodes import (
    Gpu as Gpu,
)
from routing_agent.wire.nodes import (
    NodeFacts as NodeFacts,
)
from routing_agent.wire.nodes import (
    RegisterReply as RegisterReply,
)
from routing_agent.wire.nodes import (
    RegisterRequest as RegisterRequest,
)
from routing_agent.wire.pool_settings import (
    PREFIX_POLICIES as PREFIX_POLICIES,
)
from routing_agent.wire.pool_settings import (
    PolicyName as PolicyName,
)
from routing_agent.wire.pool_settings import (
    PoolSettings as PoolSettings,
)
from routing_agent.wire.reports import (
    AgentPlaced as AgentPlaced,
)
from routing_agent.wire.reports import (
    Histogram as Histogram,
)
from routing_agent.wire.reports import (
    ModelPath as ModelPath,
)
from routing_agent.wire.reports import (
    PeerAddress as PeerAddress,
)
from routing_agent.wire.reports import (
    Placed as Placed,
)
from routing_agent.wire.reports import (
    PoolDelta as PoolDelta,
)
from routing_agent.wire.reports import (
    PoolWaiting as PoolWaiting,
)
from routing_agent.wire.reports import (
    PrefixReport as PrefixReport,
)
from routing_agent.wire.reports import (
    ReplicaReport as ReplicaReport,
)
from routing_agent.wire.reports import (
    Report as Report,
)
from routing_agent.wire.reports import (
    ReportReply as ReportReply,
)
from routing_agent.wire.reports import (
    TenantDelta as TenantDelta,
)
from routing_agent.wire.reports import (
    UsageRecord as UsageRecord,
)
from routing_agent.wire.shadows import (
    ShadowAnswer as ShadowAnswer,
)
from routing_agent.wire.shadows import (
    ShadowPair as ShadowPair,
)
from routing_agent.wire.signing import (
    NONCE_HEADER as NONCE_HEADER,
)
from routing_agent.wire.signing import (
    SIGNATURE_HEADER as SIGNATURE_HEADER,
)
from routing_agent.wire.signing import (
    SIGNATURE_WINDOW_S as SIGNATURE_WINDOW_S,
)
from routing_agent.wire.signing import (
    TIME_HEADER as TIME_HEADER,
)
from routing_agent.wire.signing import (
    signed_bytes as signed_bytes,
)
from routing_agent.wire.tables import (
    SCHEMA as SCHEMA,
)
from routing_agent.wire.tables import (
    ApiKey as ApiKey,
)
from routing_agent.wire.tables import (
    CascadeRule as CascadeRule,
)
from routing_agent.wire.tables import (
    ComplexityClass as ComplexityClass,
)
from routing_agent.wire.tables import (
    ComplexityRule as ComplexityRule,
)
from routing_agent.wire.tables import (
    Endpoint as Endpoint,
)
from routing_agent.wire.tables import (
    EndpointState as EndpointState,
)
from routing_agent.wire.tables import (
    EngineName as EngineName,
)
from routing_agent.wire.tables import (
    ModelRoute as ModelRoute,
)
from routing_agent.wire.tables import (
    OverloadPolicy as OverloadPolicy,
)
from routing_agent.wire.tables import (
    Pool as Pool,
)
from routing_agent.wire.tables import (
    RoutingTable as RoutingTable,
)
from routing_agent.wire.tables import (
    Shadow as Shadow,
)
from routing_agent.wire.tables import (
    TableReceipt as TableReceipt,
)
from routing_agent.wire.tables import (
    Tenant as Tenant,
)
from routing_agent.wire.tables import (
    TenantLimits as TenantLimits,
)
from routing_agent.wire.tables import (
    WeightedPool as WeightedPool,
)
from routing_agent.wire.tables import (
    redacted as redacted,
)
from routing_agent.wire.tables import (
    table_digest as table_digest,
)
