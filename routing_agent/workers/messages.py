"""What supervisor and workers tell one another. Both are the same program: no versions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from routing_agent.core.figures import EngineFigures
from routing_agent.wire import AgentPlaced, RequestRecord, ShadowPair
from routing_agent.workers.slots import Slots

Verdict = Literal["began", "succeeded", "failed", "abandoned"]


class Message(msgspec.Struct, tag=True, omit_defaults=True):
    """Any of them."""


# -- from the supervisor -----------------------------------------------------------------------


class Begin(Message):
    """What a worker needs to know of the agent's configuration."""

    workers: int
    number: int  # from 0
    scheme_files: tuple[str, str] | None  # certificate of the traffic port, and its key
    engine_ca_file: str | None
    place: tuple[str, str]  # node and zone of the agent
    keep_below: int  # of the hash of a request's id: see `core.sampling`
    leases: bool  # limits are shared with other agents
    keeps_pairs: bool


class PutTable(Message):
    """A table to put in place, and whose cells are whose."""

    serial: int
    content: bytes  # JSON
    wall: float  # Unix seconds by the control plane's clock
    slots: Slots


class Seen(msgspec.Struct, omit_defaults=True):
    """What the supervisor knows of one replica from its probes and scrapes."""

    replica: str
    health: Literal["unknown", "healthy", "unhealthy"]
    health_reason: str
    figures: EngineFigures
    scraped_at: float | None
    scrape_error: str
    inflight_at_scrape: int
    others_inflight: int
    others_waiting: int
    restarted_at: float | None
    process_started_at: float | None
    doubts: dict[str, str]
    max_running: int | None
    kv_capacity_tokens: int | None
    model_names: tuple[str, ...]
    adapters: tuple[str, ...]
    ramp_from: float | None


class Observed(Message):
    """What is new of replicas."""

    replicas: list[Seen]


class Serve(Message):
    """All that it needs was said: accept clients."""


class Clock(Message):
    """How far the control plane's clock is ahead of this machine's."""

    offset_s: float


class LeaseOver(Message):
    """A lease call is over: the request that waited for it tries again."""

    ticket: int
    tenant: str
    tokens: int
    is_kept: bool  # a place was taken for it


class Heard(Message):
    """What other agents placed."""

    placed: tuple[AgentPlaced, ...]


class HeardLoads(Message):
    """What another agent has under way at replicas of a pool."""

    agent: str
    pool: str
    loads: dict[str, tuple[int, float]]


class Judged(Message):
    """A request told something of a replica's engine: to all processes but where it ran."""

    replica: str
    verdict: str  # a `Verdict`
    at: float
    trial: bool = False
    may_open: bool = False


class RoomMade(Message):
    """There is room in a pool, and `worker` has who comes first."""

    pool: str
    worker: int


class Charged(Message):
    """What a tenant was charged in a pool's queue, or given back."""

    pool: str
    tenant: str
    amount: float


class Drain(Message):
    """Accept nothing more, end what runs, say so."""

    limit_s: float


class Stop(Message):
    """End at once, with an explicit error to clients that still wait."""


class Question(Message):
    """A question for one worker's state: an `ExplainRequest` as JSON, or b"" for its figures."""

    number: int
    body: bytes


# -- from a worker -----------------------------------------------------------------------------


class Ready(Message):
    """It knows the configuration, and can serve once it is told to."""


class Serving(Message):
    """It accepts clients."""


class Applied(Message):
    """A table is in place."""

    serial: int


class Finished(Message):
    """Requests that ended."""

    alike: list[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]  # see `counts.written`


class Counted(Message):
    """What else was counted since the last one."""

    requests: list[tuple[str, str, str, str, int]]  # pool, model, version, code: not yet in records
    retries: list[tuple[str, str, int]]  # pool, version
    shed: list[tuple[str, str, str, int]]  # pool, version, policy
    spills: list[tuple[str, str, int]]  # pool, reason
    held: dict[str, int]  # by pool
    moved: dict[str, int]  # sessions, by pool
    paths: list[tuple[str, str, str, list[int]]]
    shadows: dict[str, int]
    decisions: int
    decision_sum_s: float


class AtReplica(msgspec.Struct, omit_defaults=True):
    """What one worker did at one replica since it last told, and what it knows of it."""

    replica: str
    requests: int = 0
    errors: int = 0
    ejections: int = 0
    expected_tokens: int = 0
    last_token_at: float | None = None
    tokens_per_s: float = 0.0
    blocks: int = 0
    capacity_blocks: int = 0
    kv_events: str = ""
    adapters: dict[str, int] = {}  # requests under way


class AtReplicas(Message):
    """The same of several."""

    replicas: list[AtReplica]


class Kept(Message):
    """The life of a request that is to be kept."""

    record: RequestRecord


class Paired(Message):
    """Two compared answers."""

    pair: ShadowPair


class LeaseWanted(Message):
    """A request waits for one lease call."""

    ticket: int
    tenant: str
    tokens: int


class Doubted(Message):
    """An answer says that its engine takes no requests for good."""

    replica: str
    reason: str


class AdapterLost(Message):
    """An engine does not know an adapter that it was seen to list."""

    replica: str
    adapter: str


class Drained(Message):
    """All that ran has ended, or was cut off."""

    cut: int


class Answer(Message):
    """What a `Question` asked for, as JSON."""

    number: int
    body: bytes


ToWorker = (
    Begin
    | PutTable
    | Observed
    | Serve
    | Clock
    | LeaseOver
    | Heard
    | HeardLoads
    | Judged
    | RoomMade
    | Charged
    | Drain
    | Stop
    | Question
)
ToSupervisor = (
    Ready
    | Serving
    | Applied
    | Finished
    | Counted
    | AtReplicas
    | Kept
    | Paired
    | LeaseWanted
    | Judged
    | RoomMade
    | Charged
    | Doubted
    | AdapterLost
    | Drained
    | Answer
)
