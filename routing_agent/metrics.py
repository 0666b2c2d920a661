"""What the agent counts: plain integers on the request path, text and report deltas off it.

Series stay bounded: labels are pools, models, versions, replicas and tenants of the current table;
whatever a client made up shares one value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from routing_agent import exposition, wire
from routing_agent.core.fleet import Fleet
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket

BUCKETS: Final = len(LATENCY_BOUNDS_S) + 1
UNKNOWN_MODEL: Final = "unknown"
STAGES: Final = ("connect", "prefill", "decode")  # and "queue", which is queue_wait
# Tenants with series of their own; the rest are added up under one name.
TENANT_SERIES: Final = 500


class FinishedRequest(msgspec.Struct, kw_only=True):
    """The one record of a request that ended, however it ended. Durations in seconds."""

    request_id: str
    at: float  # Unix seconds of its end
    tenant: str
    api_key: str = ""
    path: str = ""
    model: str = ""  # public name; "" = never found out
    version: str = ""
    pool: str = ""
    replica: str = ""
    route: str = ""
    reason: str = ""
    stream: bool = False
    status: int = 200  # what the client got; 499 = the client left
    error: str = ""  # our error code, "" if none
    attempts: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False  # the engine gave no usage figures
    was_admitted: bool = False  # counted against the tenant's limits: goes into usage
    queue_wait_s: float = 0.0
    connect_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0


class Histogram:
    """Counts by latency bucket, with the sum that Prometheus wants."""

    __slots__ = ("counts", "sum_s", "taken")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.taken = [0] * BUCKETS  # what reports have had
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one sample."""
        self.counts[latency_bucket(seconds)] += 1
        self.sum_s += seconds

    def take(self) -> wire.Histogram:
        """Give the new samples since the last call."""
        pairs = enumerate(zip(self.counts, self.taken, strict=True))
        fresh = {i: count - taken for i, (count, taken) in pairs if count != taken}
        self.taken = self.counts.copy()
        return fresh

    def give_back(self, samples: wire.Histogram) -> None:
        """Put samples back that were not reported."""
        for i, count in samples.items():
            self.taken[i] -= count


class Tally:
    """Named counts of which reports take what is new."""

    __slots__ = ("taken", "total")

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    def take(self) -> dict[str, int]:
        """Give what is new since the last call."""
        fresh = {
            name: count - self.taken[name]
            for name, count in self.total.items()
            if count != self.taken[name]
        }
        self.taken = self.total.copy()
        return fresh

    def give_back(self, counts: Mapping[str, int]) -> None:
        """Put counts back that were not reported."""
        self.taken.subtract(counts)


class PoolCounts:
    """What one pool and version did."""

    __slots__ = ("e2e", "queue_wait", "requests", "stages", "tokens", "tpot", "ttft")

    def __init__(self) -> None:
        self.requests = Tally()
        self.tokens = Tally()  # prompt, cached, output, retries, shed
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.e2e = Histogram()
        self.queue_wait = Histogram()
        self.stages = {stage: Histogram() for stage in STAGES}

    def add(self, record: FinishedRequest, code: str) -> None:
        """Count one finished request."""
        self.requests.total[code] += 1
        tokens = self.tokens.total
        tokens["prompt"] += record.prompt_tokens
        tokens["cached"] += record.cached_prompt_tokens
        tokens["output"] += record.output_tokens
        self.e2e.add(record.e2e_s)
        self.queue_wait.add(record.queue_wait_s)
        if record.connect_s is not None:
            self.stages["connect"].add(record.connect_s)
        if record.ttft_s is not None:
            self.ttft.add(record.ttft_s)
            # No proxy sees a prefill begin: what is left of the TTFT counts as prefill.
            waited_s = record.queue_wait_s + (record.connect_s or 0.0)
            self.stages["prefill"].add(max(record.ttft_s - waited_s, 0.0))
            self.stages["decode"].add(max(record.e2e_s - record.ttft_s, 0.0))
        if record.tpot_s is not None:
            self.tpot.add(record.tpot_s)

    def take(self, pool: str, version: str) -> wire.PoolDelta:
        """Give what is new."""
        tokens = self.tokens.take()
        return wire.PoolDelta(
            pool=pool,
            version=version,
            requests=self.requests.take(),
            ttft=self.ttft.take(),
            tpot=self.tpot.take(),
            e2e=self.e2e.take(),
            queue_wait=self.queue_wait.take(),
            prompt_tokens=tokens.get("prompt", 0),
            cached_prompt_tokens=tokens.get("cached", 0),
            output_tokens=tokens.get("output", 0),
            retries=tokens.get("retries", 0),
            shed=tokens.get("shed", 0),
        )

    def give_back(self, delta: wire.PoolDelta) -> None:
        """Put a delta back."""
        self.requests.give_back(delta.requests)
        self.ttft.give_back(delta.ttft)
        self.tpot.give_back(delta.tpot)
        self.e2e.give_back(delta.e2e)
        self.queue_wait.give_back(delta.queue_wait)
        self.tokens.give_back(
            {
                "prompt": delta.prompt_tokens,
                "cached": delta.cached_prompt_tokens,
                "output": delta.output_tokens,
                "retries": delta.retries,
                "shed": delta.shed,
            }
        )


class TenantCounts:
    """What one tenant did."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = Tally()
        self.tokens = Tally()


class Metrics:
    """All counters of one agent process."""

    def __init__(self) -> None:
        self.table_applied_at: float | None = None  # monotonic; set by whoever applies tables
        self.gpus: tuple[wire.Gpu, ...] = ()  # newest readings; set by the GPU watcher
        self._finished: list[FinishedRequest] = []  # not yet counted
        self.pools: defaultdict[tuple[str, str], PoolCounts] = defaultdict(PoolCounts)
        self.tenants: defaultdict[str, TenantCounts] = defaultdict(TenantCounts)
        self.requests: Counter[tuple[str, str, str, str]] = Counter()  # pool, model, version, code
        self.shed_total: Counter[str] = Counter()  # by overload policy
        self.records: Counter[str] = Counter()  # lives of requests, by what became of them
        self.retries_total = 0
        self.decision_sum_s = 0.0
        self.decisions = 0

    # -- on the request path -------------------------------------------------------------------

    def request_finished(self, record: FinishedRequest) -> None:
        """Note one finished request; it is counted within a tick, or when somebody reads."""
        self._finished.append(record)

    def settle(self) -> None:
        """Count what was noted: many at once cost less than each on its own way."""
        finished, self._finished = self._finished, []
        for record in finished:
            self._count(record)

    def _count(self, record: FinishedRequest) -> None:
        code = _CODES[record.status]
        model = record.model or UNKNOWN_MODEL
        self.requests[(record.pool, model, record.version, code)] += 1
        if record.pool:
            self.pools[(record.pool, record.version)].add(record, code)
        if record.tenant:
            counts = self.tenants[record.tenant]
            counts.requests.total[code] += 1
            counts.tokens.total["prompt"] += record.prompt_tokens
            counts.tokens.total["output"] += record.output_tokens

    def answered_locally(self, status: int) -> None:
        """Count a request that never got as far as a model; good ones are not traffic."""
        if status >= _BAD:
            self.requests[("", UNKNOWN_MODEL, "", _CODES[status])] += 1

    def retried(self, pool: wire.Pool) -> None:
        """Count one retry."""
        self.retries_total += 1
        self.pools[(pool.name, pool.version)].tokens.total["retries"] += 1

    def shed(self, pool: wire.Pool, policy: wire.OverloadPolicy) -> None:
        """Count a request that overload turned away, or to another pool."""
        self.shed_total[policy] += 1
        self.pools[(pool.name, pool.version)].tokens.total["shed"] += 1

    # -- off the request path ------------------------------------------------------------------

    def render(self, fleet: Fleet, *, now: float) -> str:
        """Give the Prometheus text exposition (format 0.0.4) of everything."""
        self.settle()
        self._forget_gone(fleet)
        return exposition.render(_families(self, fleet, now))

    def take_deltas(self) -> tuple[tuple[wire.PoolDelta, ...], tuple[wire.TenantDelta, ...]]:
        """Give what happened since the last call, and start anew."""
        self.settle()
        pools = [counts.take(*key) for key, counts in self.pools.items()]
        tenants = [_take_tenant(name, counts) for name, counts in self.tenants.items()]
        return (
            tuple(d for d in pools if d.requests or d.retries or d.shed),
            tuple(d for d in tenants if d.requests),
        )

    def give_back(
        self, pools: Iterable[wire.PoolDelta], tenants: Iterable[wire.TenantDelta]
    ) -> None:
        """Put deltas back that could not be reported: the next `take_deltas` has them again."""
        for pool in pools:
            self.pools[(pool.pool, pool.version)].give_back(pool)
        for tenant in tenants:
            counts = self.tenants[tenant.tenant]
            counts.requests.give_back(tenant.requests)
            counts.tokens.give_back(
                {"prompt": tenant.prompt_tokens, "output": tenant.output_tokens}
            )

    def _forget_gone(self, fleet: Fleet) -> None:
        """Drop the series of pools and tenants that the table no longer has, once reported."""
        table = fleet.table
        if table is None:
            return
        current = {(pool.name, pool.version) for pool in table.pools.values()}
        for key in [
            k for k, counts in self.pools.items() if k not in current and _reported(counts)
        ]:
            del self.pools[key]
        for labels in [k for k in self.requests if k[0] and (k[0], k[2]) not in current]:
            del self.requests[labels]
        for name in [t for t in self.tenants if t not in table.tenants]:
            if self.tenants[name].requests.total == self.tenants[name].requests.taken:
                del self.tenants[name]


_BAD: Final = 400
_CODES: Final = {status: str(status) for status in range(100, 1000)}


def _reported(counts: PoolCounts) -> bool:
    return counts.requests.total == counts.requests.taken


def _take_tenant(name: str, counts: TenantCounts) -> wire.TenantDelta:
    tokens = counts.tokens.take()
    return wire.TenantDelta(
        tenant=name,
        requests=counts.requests.take(),
        prompt_tokens=tokens.get("prompt", 0),
        output_tokens=tokens.get("output", 0),
    )


def _families(metrics: Metrics, fleet: Fleet, now: float) -> Iterable[exposition.Family]:
    yield from _traffic(metrics)
    yield from _latencies(metrics)
    yield from _replicas(fleet)
    yield from _table(metrics, fleet, now)
    yield from _records(metrics)
    yield from _gpus(metrics.gpus)


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
        requests[label] += counts.requests.total.total()
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
    yield exposition.gauge(
        "breaker_state",
        "0 closed, 1 half open, 2 open.",
        [(ls, _BREAKER_VALUES[r.breaker.state]) for ls, r in replicas],
    )
    yield exposition.gauge(
        "adapter_loaded",
        "1 for each adapter that is resident on a replica.",
        [(ls | {"adapter": name}, 1) for ls, r in replicas for name in r.adapters],
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
