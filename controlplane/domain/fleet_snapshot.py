"""What a routing table is made of: the fleet's rows as the database has them, at one moment.

What is stored as JSON is carried as it is; whoever compiles the table checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.domain.replica_states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model as the database has it."""

    name: str
    aliases: Any = ()  # JSON as stored: checked when compiled
    bytes_per_token: float = 4.0
    complexity: Any = None  # JSON as stored, too
    cascade: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRow:
    """Where copies of a pool's requests go, as the database has it."""

    pool: str
    ratio: float
    at_once: int
    keep: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool as the database has it, with what its version says."""

    slug: str
    model: str
    version: str
    overload: str
    fallback_pool: str = ""
    overrides: Any  # JSON as stored: checked when compiled
    context_tokens: int | None = None
    start_wait_s: float = 0.0
    may_grow_to: int = 0
    shadow: ShadowRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A replica as the database has it."""

    public_id: str
    pool: str
    url: str
    state: State
    engine: str = "vllm"
    served_model: str = ""
    credential: str = ""
    node: str = ""
    zone: str = ""
    weight: float = 1.0
    ready_at: float = 0.0  # Unix seconds; 0 = never
    ejected_by_operator: bool = False
    gpus: tuple[int, ...] = ()
    adapters: tuple[str, ...] = ()  # served names it is to hold


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """A pool's share of a model's sessions."""

    model: str
    pool: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant as the database has it."""

    slug: str
    priority: int = 5
    models: Any = ()  # JSON as stored: checked when compiled
    suspended: bool = False
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    when_unreachable: str = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key that is not revoked; an expired one is left to the agents, who know the hour."""

    public_id: str
    sha256: str
    tenant: str
    expires_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRow:
    """A version of an adapter that may be called or is being loaded."""

    name: str
    tenant: str
    shared_with: tuple[str, ...] = ()
    model: str
    digest: str
    files: Any  # JSON as stored: checked when compiled
    served_name: str
    size_bytes: int = 0
    rank: int = 0
    pinned: bool = False
    active: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything a table is made of, read at one moment."""

    revision: int
    models: tuple[ModelRow, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    splits: tuple[SplitRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()
    keys: tuple[KeyRow, ...] = ()
    adapters: tuple[AdapterRow, ...] = ()
