"""The lives of requests: choices, stages, attempts, and the record of a whole one."""

from __future__ import annotations

from typing import Final, Literal

from routing_agent.wire.base import Count, Message


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
    adapter: str = ""  # `Adapter.served_name`
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
