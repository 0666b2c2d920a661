"""The metrics page of an agent: all it counts and knows, as Prometheus families."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Final

from routing_agent import exposition, wire
from routing_agent.core.fleet import Fleet
from routing_agent.counts import Histogram
from routing_agent.metrics import Metrics

# Tenants with series of their own; the rest are added up under one name.
TENANT_SERIES: Final = 500
SHARE_SERIES: Final = 20  # a pool


def render(metrics: Metrics, fleet: Fleet, *, now: float) -> str:
    """Give the Prometheus text exposition (format 0.0.4) of everything."""
    metrics.settle()
    metrics.forget_gone(fleet)
    return exposition.render(_families(metrics, fleet, now))


def _families(metrics: Metrics, fleet: Fleet, now: float) -> Iterable[exposition.Family]:
    yield from _traffic(metrics)
    yield from _latencies(metrics)
    yield from _replicas(fleet)
    yield from _table(metrics, fleet, now)
    yield from _records(metrics)
    yield from _adapters(metrics)
    yield from _gpus(metrics.gpus)
    yield from _leases(metrics)
    yield from _shares(fleet)
    yield from _paths(metrics)


def _traffic(metrics: Metrics) -> Iterable[exposition.Family]:
    names = ("pool", "model", "version", "code")
    yield exposition.counter(
        "requests_total",
        "Finished requests by the status their client got (499: it left).",
        [(dict(zip(names, key, strict=True)), n) for key, n in metrics.requests.items()],
    )
    requests: Counter[str] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for i, (tenant, counts) in enumerate(metrics.tenants.items()):
        label = tenant if i < TENANT_SERIES else "other tenants"
        requests[label] += sum(counts.requests.total.values())
        for kind, n in counts.tokens.total.items():
            tokens[(label, kind)] += n
    yield exposition.counter(
        "tenant_requests_total",
        "Finished requests by tenant.",
        [({"tenant": tenant}, n) for tenant, n in requests.items()],
    )
    yield exposition.counter(
        "tenant_tokens_total",
        "Tokens by tenant and kind (prompt, output).",
        [({"tenant": tenant, "kind": kind}, n) for (tenant, kind), n in tokens.items()],
    )
    yield exposition.counter(
        "retries_total", "Attempts after a failed one.", [({}, metrics.retries_total)]
    )
    yield exposition.counter(
        "shed_total",
        "Requests that overload turned away, or to a fallback pool.",
        [({"policy": policy}, n) for policy, n in metrics.shed_total.items()],
    )
    yield exposition.counter(
        "held_back_total",
        "Requests that waited because each replica had enough to compute, by pool.",
        [({"pool": pool}, n) for pool, n in metrics.held_total.items()],
    )
    yield exposition.counter(
        "zone_spills_total",
        "Requests that left this agent's zone, by pool and reason: no_replica, prefix or load.",
        [
            ({"pool": pool, "reason": reason}, n)
            for (pool, reason), n in metrics.spills_total.items()
        ],
    )


def _latencies(metrics: Metrics) -> Iterable[exposition.Family]:
    pools = [
        ({"pool": pool, "version": version}, counts)
        for (pool, version), counts in metrics.pools.items()
    ]
    told = (
        ("ttft_seconds", "Time to first token of streams.", "ttft"),
        ("tpot_seconds", "Mean time per output token after the first.", "tpot"),
        ("e2e_seconds", "Time from a whole request to the end of its answer.", "e2e"),
        ("queue_wait_seconds", "Time in this agent's queue.", "queue_wait"),
    )
    for name, text, field in told:
        yield exposition.histogram(
            name, text, [(labels, *_series(getattr(counts, field))) for labels, counts in pools]
        )
    yield exposition.histogram(
        "stage_seconds",
        "Time in each stage of a request; prefill is estimated as the rest of the TTFT.",
        [
            (labels | {"stage": stage}, *_series(histogram))
            for labels, counts in pools
            for stage, histogram in (("queue", counts.queue_wait), *counts.stages.items())
        ],
    )


def _records(metrics: Metrics) -> Iterable[exposition.Family]:
    yield exposition.gauge(
        "stage_budget_seconds",
        "What a part of a request may take: for a 7B model, 512 tokens in; decode for a token.",
        [({"stage": stage}, budget_s) for stage, budget_s in _STAGE_BUDGETS.items()],
    )
    yield exposition.counter(
        "request_records_total",
        "Lives of requests by what became of them.",
        [({"outcome": outcome}, n) for outcome, n in metrics.records.items()],
    )
    yield exposition.counter(
        "shadow_total",
        "Copies of requests to shadows by what became of them.",
        [({"outcome": outcome}, n) for outcome, n in metrics.shadows.items()],
    )


def _adapters(metrics: Metrics) -> Iterable[exposition.Family]:
    told = (
        ("fetch", "adapter_fetches_total", "Adapters fetched from the control plane."),
        ("load", "adapter_loads_total", "Loads of adapters into engines of this node."),
        ("unload", "adapter_unloads_total", "Adapters taken out of engines of this node."),
    )
    for step, name, text in told:
        counts = [(o, n) for (s, o), n in metrics.adapter_steps.items() if s == step]
        yield exposition.counter(
            name, f"{text} By outcome.", [({"outcome": outcome}, n) for outcome, n in counts]
        )
    yield exposition.counter(
        "adapter_fetched_bytes_total",
        "Bytes of adapters fetched from the control plane.",
        [({}, metrics.adapter_bytes)],
    )


# By the stages of `stage_seconds`: the engine's own scheduling is part of the prefill as we see it.
_STAGE_BUDGETS: Final = {
    "queue": wire.BUDGET_QUEUE_S,
    "connect": wire.BUDGET_NETWORK_S,
    "prefill": wire.BUDGET_SCHEDULING_S + wire.BUDGET_PREFILL_S,
    "decode_token": wire.BUDGET_DECODE_TOKEN_S,
}


def _series(histogram: Histogram) -> tuple[list[int], float]:
    return histogram.counts, histogram.sum_s


def _replicas(fleet: Fleet) -> Iterable[exposition.Family]:
    replicas = [({"pool": r.pool, "replica": r.id}, r) for r in fleet.replicas.values()]
    told = (
        ("inflight_requests", "Requests under way."),
        ("inflight_tokens", "Prompt and expected output tokens under way."),
    )
    for name, text in told:
        yield exposition.gauge(name, text, [(ls, getattr(r, name)) for ls, r in replicas])
    counted = (
        ("prompt_tokens_total", "Prompt tokens of finished requests."),
        ("cached_prompt_tokens_total", "Prompt tokens that came from the prefix cache."),
        ("output_tokens_total", "Output tokens of finished requests."),
        ("errors_total", "Failures that count against the replica."),
        ("ejections_total", "Times the breaker opened."),
    )
    for name, text in counted:
        yield exposition.counter(name, text, [(ls, getattr(r, name)) for ls, r in replicas])
    yield from _prefixes(fleet)
    yield exposition.gauge(
        "breaker_state",
        "0 closed, 1 half open, 2 open.",
        [(ls, _BREAKER_VALUES[r.breaker.state]) for ls, r in replicas],
    )
    yield exposition.gauge(
        "adapter_loaded",
        "1 for each adapter that is resident on a replica.",
        [(ls | {"adapter": name}, 1) for ls, r in replicas for name in r.adapters.ours],
    )


def _prefixes(fleet: Fleet) -> Iterable[exposition.Family]:
    """What choices by prefix go by, and how often sessions moved."""
    replicas = [
        ({"pool": name, "replica": r.id}, r)
        for name, pool in fleet.pools.items()
        if pool.uses_prefixes
        for r in pool.replicas
    ]
    yield exposition.gauge(
        "prefix_blocks",
        "Blocks of prompts that a replica is believed to have cached.",
        [(labels, len(r.profile)) for labels, r in replicas],
    )
    yield exposition.counter(
        "expected_cached_prompt_tokens_total",
        "Prompt tokens that were believed to be cached, of requests whose engine told its own.",
        [(labels, r.cache.expected_tokens_total) for labels, r in replicas],
    )
    yield exposition.gauge(
        "prefill_tokens_per_second",
        "Prompt tokens a replica computes in a second, as learned from times to first token.",
        [(labels, r.prefill.tokens_per_s) for labels, r in replicas],
    )
    yield exposition.counter(
        "sessions_moved_total",
        "Times a session was sent elsewhere than its last request.",
        [
            ({"pool": name}, pool.sessions.moved_total)
            for name, pool in fleet.pools.items()
            if pool.notes_placements
        ],
    )


_BREAKER_VALUES: Final = {"closed": 0, "half_open": 1, "open": 2}


def _table(metrics: Metrics, fleet: Fleet, now: float) -> Iterable[exposition.Family]:
    yield exposition.summary(
        "route_decision_seconds",
        "Time to choose a replica.",
        metrics.decisions,
        metrics.decision_sum_s,
    )
    if fleet.table is None:
        return
    yield exposition.gauge("table_epoch", "Epoch of the routing table.", [({}, fleet.table.epoch)])
    if metrics.table_applied_at is not None:
        age_s = max(now - metrics.table_applied_at, 0.0)
        yield exposition.gauge("table_age_seconds", "Time since it was applied.", [({}, age_s)])


def _leases(metrics: Metrics) -> Iterable[exposition.Family]:
    leases = metrics.leases
    yield exposition.counter(
        "lease_calls_total",
        "Calls for shares of tenants' limits, by what became of them.",
        [({"outcome": outcome}, n) for outcome, n in leases.calls.items()],
    )
    yield exposition.counter(
        "lease_waits_total",
        "Requests that waited for a lease call: answered, too_late (no answer in time), hung (not "
        "even tried: the call under way was late already), failed.",
        [({"outcome": outcome}, n) for outcome, n in leases.waits.items()],
    )
    if leases.calls:
        yield exposition.histogram(
            "lease_seconds", "Time of answered lease calls.", [({}, *_series(leases.seconds))]
        )


def _shares(fleet: Fleet) -> Iterable[exposition.Family]:
    counters = [
        ({"pool": name, "tenant": tenant}, value)
        for name, pool in fleet.pools.items()
        for tenant, value in heapq.nlargest(
            SHARE_SERIES, pool.shares.counters().items(), key=lambda item: item[1]
        )
    ]
    yield exposition.gauge(
        "fair_share_counter",
        "Weighted tokens by which tenants that waited come next, the lowest first; the highest are "
        "told.",
        counters,
    )


def _paths(metrics: Metrics) -> Iterable[exposition.Family]:
    names = ("model", "path", "answered_by")
    told = [(dict(zip(names, key, strict=True)), counts) for key, counts in metrics.paths.items()]
    yield exposition.counter(
        "model_paths_total",
        "Requests by how it was decided which model (or, by shape, which pool) answers.",
        [(labels, counts[0]) for labels, counts in told],
    )
    yield exposition.counter(
        "cascade_wasted_tokens_total",
        "Tokens that a small model wrote and a large one wrote anew.",
        [(labels, counts[3]) for labels, counts in told if counts[3]],
    )


def _gpus(gpus: tuple[wire.Gpu, ...]) -> Iterable[exposition.Family]:
    told = (
        ("gpu_utilization_ratio", "Share of time the GPU was busy.", "utilization_ratio"),
        ("gpu_memory_used_bytes", "GPU memory in use.", "memory_used_bytes"),
        ("gpu_memory_total_bytes", "GPU memory there is.", "memory_bytes"),
        ("gpu_temperature_celsius", "GPU temperature.", "temperature_celsius"),
    )
    for name, text, field in told:
        samples = [({"gpu": str(g.index), "model": g.model}, getattr(g, field)) for g in gpus]
        yield exposition.gauge(name, text, [(ls, v) for ls, v in samples if v is not None])
