"""Every knob of a pool that its agents obey."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from routing_agent.wire.base import Count, Message, Ratio, Seconds

PolicyName = Literal[
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "power_of_two",
    "consistent_hash",
    "cache_aware",
    "expected_ttft",
]


# Policies that look at a prompt's blocks; for the others nobody needs to hash.
PREFIX_POLICIES: Final = frozenset(("cache_aware", "expected_ttft"))
KV_ADDRESS: Final = r"^$|^(tcp://[^\s/]+:[^\s/]+|ipc:///[^\s]+)$"


class PoolSettings(Message, frozen=True, kw_only=True):
    """Every knob of a pool that its agents obey, with the product's defaults.

    This class is the one table of defaults: console, API, documentation and the stand-alone
    router read it (`tests/contract/` holds them equal). Seconds and counts.
    """

    policy: PolicyName = "expected_ttft"
    affinity_key: Literal["session", "user"] = "session"
    virtual_nodes: Annotated[int, Meta(ge=1, le=4096)] = 160
    ring_bound: Annotated[float, Meta(ge=1)] = 1.25
    session_lifetime_s: Seconds = 1800.0
    hit_dial: Annotated[float, Meta(ge=0)] = 3.0
    load_dial: Annotated[float, Meta(ge=0)] = 1.0
    session_margin_s: Annotated[float, Meta(ge=0)] = 0.3
    # A request waits in its agent while every replica has more prompts ahead; 0: never for that.
    bind_ahead_s: Annotated[float, Meta(ge=0)] = 0.0
    # How much sooner a replica in another zone than the agent's must be; 0: zones do not count.
    zone_margin_s: Annotated[float, Meta(ge=0)] = 0.1
    near_tie_ratio: Ratio = 0.05
    near_tie_s: Annotated[float, Meta(ge=0)] = 0.05
    profile_idle_s: Seconds = 1200.0
    profile_blocks: Count | None = None  # None: as many as the replica's KV cache really holds
    # Where an engine publishes what its KV cache holds (ZMQ), with {host} and {port} or {port+N} of
    # its own address; "": not followed. And where it repeats what was missed.
    kv_events: Annotated[str, Meta(pattern=KV_ADDRESS)] = ""
    kv_replay: Annotated[str, Meta(pattern=KV_ADDRESS)] = ""
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
    # Only requests whose prompt is estimated to have at most so many tokens; None: any.
    max_input_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_concurrency_per_replica: Count | None = None  # None: no ceiling of our own
    body_limit_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    extra_paths: tuple[str, ...] = ()
    adapter_slots: Annotated[int, Meta(ge=0, le=1024)] = 8  # LoRA adapters a replica may hold
    adapter_max_rank: Annotated[int, Meta(ge=1, le=1024)] = 64
