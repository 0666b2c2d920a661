"""The words for each pool setting: group, label, unit, help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Text = tuple[str, str, str, str]

_CHOOSING: Final = "Choosing a replica"
_SCRAPING: Final = "Reading the engines"
_WAITING: Final = "Queue and limits of time"
_RETRYING: Final = "Retries and breaker"
_PROBING: Final = "Health and life-cycle"
_EDGES: Final = "Requests"
_ADAPTERS: Final = "LoRA adapters"

TEXTS: Final[Mapping[str, Text]] = {
    "policy": (_CHOOSING, "Policy", "", "How agents choose among the replicas of this pool."),
    "affinity_key": (
        _CHOOSING,
        "Affinity key",
        "",
        "What keeps requests on one replica: the session, or the person named in `user`.",
    ),
    "virtual_nodes": (
        _CHOOSING,
        "Virtual nodes",
        "",
        "Points of each replica on the hash ring; more spread sessions more evenly.",
    ),
    "ring_bound": (
        _CHOOSING,
        "Ring bound",
        "x mean",
        "Load above which a session's own replica is passed over, as a multiple of the mean.",
    ),
    "session_lifetime_s": (
        _CHOOSING,
        "Session lifetime",
        "s",
        "How long an idle session is remembered.",
    ),
    "hit_dial": (
        _CHOOSING,
        "Hit dial",
        "",
        "Weight of saved prefill against waiting work; higher keeps prefixes together.",
    ),
    "load_dial": (
        _CHOOSING,
        "Load dial",
        "",
        "Weight of waiting work against saved prefill; higher spreads load more evenly.",
    ),
    "session_margin_s": (
        _CHOOSING,
        "Session margin",
        "s",
        "A session leaves its replica only if another is faster by at least this.",
    ),
    "bind_ahead_s": (
        _CHOOSING,
        "Bind ahead",
        "s",
        "Requests wait in the agent, by fair shares, while each replica has prompts for longer "
        "than this ahead; 0: they are sent at once. For engines whose time goes into prompts.",
    ),
    "zone_margin_s": (
        _CHOOSING,
        "Zone margin",
        "s",
        "An agent leaves its zone only if a replica elsewhere is faster by at least this; "
        "0: zones do not count.",
    ),
    "near_tie_ratio": (
        _CHOOSING,
        "Near-tie ratio",
        "0 to 1",
        "Costs this close, as a share, count as equal.",
    ),
    "near_tie_s": (_CHOOSING, "Near-tie", "s", "Costs this close, in seconds, count as equal."),
    "profile_idle_s": (
        _CHOOSING,
        "Prefix memory",
        "s",
        "How long an unused prefix is believed to be in a replica's cache.",
    ),
    "profile_blocks": (
        _CHOOSING,
        "Prefix blocks",
        "blocks",
        "Most prefix blocks remembered of a replica; empty means as many as its KV cache holds.",
    ),
    "kv_events": (
        _SCRAPING,
        "KV events",
        "",
        "Where engines publish what their KV caches hold: tcp://{host}:5557 or, with several on a"
        " host, tcp://{host}:{port+1000}. Empty: not followed.",
    ),
    "kv_replay": (
        _SCRAPING,
        "KV replay",
        "",
        "Where engines repeat what an agent missed of these events. Empty: nowhere.",
    ),
    "kv_soft_usage": (
        _SCRAPING,
        "KV usage, soft",
        "0 to 1",
        "Above this KV cache usage a replica costs more.",
    ),
    "kv_hard_usage": (
        _SCRAPING,
        "KV usage, hard",
        "0 to 1",
        "Above this KV cache usage a replica gets new work only if no other can take it.",
    ),
    "scrape_interval_s": (
        _SCRAPING,
        "Scrape interval",
        "s",
        "How often agents read an engine's metrics.",
    ),
    "scrape_stale_s": (
        _SCRAPING,
        "Figures stale after",
        "s",
        "Older engine figures are treated as unknown, neither idle nor full.",
    ),
    "scrape_dead_s": (
        _SCRAPING,
        "Figures dead after",
        "s",
        "Without figures for this long the replica is reported as not measurable.",
    ),
    "queue_limit_per_replica": (
        _WAITING,
        "Queue limit",
        "requests a healthy replica",
        "Requests that may wait in an agent; beyond it the overload policy applies.",
    ),
    "queue_deadline_s": (
        _WAITING,
        "Queue deadline",
        "s",
        "A request that waited this long for a replica is answered with 503.",
    ),
    "ttft_limit_s": (
        _WAITING,
        "TTFT limit",
        "s",
        "Longest wait for the first token after a request was sent to a replica.",
    ),
    "stall_limit_s": (
        _WAITING,
        "Stall limit",
        "s",
        "Longest silence between two tokens of a running stream.",
    ),
    "connect_limit_s": (_WAITING, "Connect limit", "s", "Longest time to open a connection."),
    "end_to_end_limit_s": (
        _WAITING,
        "End-to-end limit",
        "s",
        "Longest time for a whole request, whatever its progress.",
    ),
    "max_retries": (
        _RETRYING,
        "Retries",
        "",
        "Further attempts, each on another replica, while the client has seen nothing yet.",
    ),
    "retry_backoff_s": (
        _RETRYING,
        "Retry back-off",
        "s",
        "Pause before the first retry; doubled for each further one.",
    ),
    "retry_jitter": (_RETRYING, "Retry jitter", "0 to 1", "Random share of each pause."),
    "retry_budget_ratio": (
        _RETRYING,
        "Retry budget",
        "0 to 1",
        "Retries allowed as a share of requests, so that a bad hour is not made worse.",
    ),
    "breaker_failures": (
        _RETRYING,
        "Breaker failures",
        "",
        "Failures within the window that open a replica's breaker.",
    ),
    "breaker_window_s": (_RETRYING, "Breaker window", "s", "Where failures are counted."),
    "breaker_open_s": (
        _RETRYING,
        "Breaker stays open",
        "s",
        "How long an open breaker keeps traffic away before one trial request.",
    ),
    "breaker_good_to_close": (
        _RETRYING,
        "Good answers to close",
        "",
        "Successful trials in a row that close the breaker.",
    ),
    "eject_ceiling_ratio": (
        _PROBING,
        "Ejection ceiling",
        "0 to 1",
        "Largest share of the pool that may be out for its health at once.",
    ),
    "probe_interval_s": (_PROBING, "Probe interval", "s", "How often health is asked for."),
    "probe_timeout_s": (_PROBING, "Probe time-out", "s", "Longest wait for a health answer."),
    "probe_failures": (
        _PROBING,
        "Bad probes to eject",
        "",
        "Failed probes in a row that make a replica unhealthy; flowing tokens count as life.",
    ),
    "probe_recoveries": (
        _PROBING,
        "Good probes to return",
        "",
        "Good probes in a row that make a replica healthy again.",
    ),
    "slow_start_s": (
        _PROBING,
        "Slow start",
        "s",
        "How long a new or recovered replica's share grows to the full one.",
    ),
    "slow_start_from_ratio": (
        _PROBING,
        "Slow start from",
        "0 to 1",
        "Share of the full load at the beginning of the slow start.",
    ),
    "drain_limit_s": (
        _PROBING,
        "Drain limit",
        "s",
        "How long running requests may go on when a replica is drained.",
    ),
    "broken_stream": (
        _EDGES,
        "Broken stream",
        "",
        "What becomes of a stream whose replica dies: `end` with an error, or `continue`.",
    ),
    "max_input_tokens": (
        _EDGES,
        "Longest prompt",
        "tokens",
        "Only prompts estimated to be no longer come here while another pool of the model takes"
        " longer ones; empty: any. A session keeps its pool while it fits.",
    ),
    "max_concurrency_per_replica": (
        _EDGES,
        "Concurrency limit",
        "requests a replica",
        "Most requests on one replica at once; empty: what its engine says it computes at once"
        " and a tenth more, or no ceiling if it does not say.",
    ),
    "body_limit_bytes": (_EDGES, "Body limit", "bytes", "Larger requests are answered with 413."),
    "extra_paths": (
        _EDGES,
        "Further paths",
        "",
        "Inference paths forwarded besides the standard ones; management paths are refused.",
    ),
    "adapter_slots": (
        _ADAPTERS,
        "Adapter slots",
        "adapters a replica",
        "LoRA adapters a replica holds at once; the least recently used make room. Not above what"
        " its engine was started for (vLLM: --max-cpu-loras); 0: none.",
    ),
    "adapter_max_rank": (
        _ADAPTERS,
        "Largest adapter rank",
        "",
        "Adapters of a higher rank are not loaded here. Not above what its engine was started for"
        " (vLLM: --max-lora-rank, 16 unless set).",
    ),
}
