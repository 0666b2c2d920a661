"""The routing table, and an agent's answer to it."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from routing_agent.wire.adapters import Adapter
from routing_agent.wire.base import Count, Message, Ratio
from routing_agent.wire.pool_settings import PoolSettings

SCHEMA: Final = 1

OverloadPolicy = Literal["queue", "fallback", "reject"]
EngineName = Literal["vllm", "sglang", "llamacpp", "tgi", "triton", "openai"]
EndpointState = Literal["warming", "ready", "ejected", "draining"]


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
    adapters: tuple[str, ...] = ()  # LoRA adapters it should hold, by `Adapter.served_name`
    gpus: tuple[Count, ...] = ()  # indices of its node's GPUs that it holds


class Shadow(Message, frozen=True, kw_only=True):
    """Where copies of a pool's requests go, how many, and what is kept of the answers."""

    pool: str
    ratio: Ratio = 0.1  # of requests, by a hash of their id
    at_once: Annotated[int, Meta(ge=1, le=64)] = 4  # copies under way, through each agent
    keep: Literal["figures", "answers", "prompts"] = "figures"  # each includes those before it


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
    # Above 0: while no replica serves and one may come, requests wait this long for it, as many as
    # would be let into the queue of `may_grow_to` replicas.
    start_wait_s: Annotated[float, Meta(ge=0)] = 0.0
    may_grow_to: Count = 0
    shadow: Shadow | None = None


class WeightedPool(Message, frozen=True, kw_only=True):
    """A pool's share of a model's sessions; weights need not add up to 100, zero is just that."""

    pool: str
    weight: Annotated[float, Meta(ge=0)] = 100.0


class ComplexityClass(Message, frozen=True, kw_only=True):
    """Requests whose score is below `below` (None: all the rest) go to `model`."""

    name: str
    model: str
    below: float | None = None


class ComplexityRule(Message, frozen=True, kw_only=True):
    """Which model answers, by how complex a request is: a linear score over cheap features."""

    weights: dict[str, float] = {}
    bias: float = 0.0
    classes: tuple[ComplexityClass, ...] = ()


class CascadeRule(Message, frozen=True, kw_only=True):
    """When an answer of this model is not trusted and `to` is asked instead."""

    to: str
    min_mean_logprob: float | None = None
    on_cut: bool = True
    on_refusal: bool = True


class ModelRoute(Message, frozen=True, kw_only=True):
    """A public model name, its aliases, and the pools its sessions are split over."""

    model: str
    aliases: tuple[str, ...] = ()
    split: tuple[WeightedPool, ...] = ()
    bytes_per_token: Annotated[float, Meta(gt=0)] = 4.0
    context_tokens: Count | None = None
    complexity: ComplexityRule | None = None
    cascade: CascadeRule | None = None


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
    adapters: tuple[Adapter, ...] = ()


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
