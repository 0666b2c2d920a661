"""What the agent counts: plain integers on the request path, text and report deltas off it.

Series stay bounded: labels are pools, models, versions, replicas and tenants of the current table;
whatever a client made up shares one value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.wire import LATENCY_BOUNDS_S

BUCKETS: Final = len(LATENCY_BOUNDS_S) + 1
_BOUNDS_S: Final = LATENCY_BOUNDS_S
UNKNOWN_MODEL: Final = "unknown"
STAGES: Final = ("connect", "prefill", "decode")  # and "queue", which is queue_wait


class FinishedRequest:
    """The one record of a request that ended, however it ended. Durations in seconds."""

    path = ""
    api_key = ""
    model = ""  # public name; "" = never found out
    adapter = ""  # its served name
    version = ""
    pool = ""
    replica = ""
    route = ""
    reason = ""
    stream = False
    error = ""  # our error code, "" if none
    attempts = 0
    prompt_tokens = 0
    cached_prompt_tokens = 0
    output_tokens = 0
    estimated = False  # the engine gave no usage figures
    was_admitted = False  # counted against the tenant's limits: goes into usage
    queue_wait_s = 0.0
    connect_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s = 0.0

    def __init__(self, request_id: str, *, tenant: str, status: int, at: float) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.status = status  # what the client got; 499 = the client left
        self.at = at  # Unix seconds of its end


class Histogram:
    """Counts by latency bucket, with the sum that Prometheus wants."""

    __slots__ = ("counts", "sum_s", "taken")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.taken = [0] * BUCKETS  # what reports have had
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one sample."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1  # as `wire.latency_bucket`
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
        self.total: dict[str, int] = {}
        self.taken: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        """Count so many more."""
        self.total[name] = self.total.get(name, 0) + count

    def take(self) -> dict[str, int]:
        """Give what is new since the last call."""
        fresh = {
            name: new
            for name, count in self.total.items()
            if (new := count - self.taken.get(name, 0))
        }
        self.taken = self.total.copy()
        return fresh

    def give_back(self, counts: Mapping[str, int]) -> None:
        """Put counts back that were not reported."""
        for name, count in counts.items():
            self.taken[name] = self.taken.get(name, 0) - count


class PoolCounts:
    """What one pool and version did."""

    __slots__ = (
        "e2e",
        "engine_queue_wait",
        "queue_wait",
        "requests",
        "stages",
        "tokens",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.requests = Tally()
        self.tokens = Tally()  # prompt, cached, output, retries, shed
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.e2e = Histogram()
        self.queue_wait = Histogram()
        self.engine_queue_wait = Histogram()  # as engines tell of their own queues
        self.stages = {stage: Histogram() for stage in STAGES}

    def add_times(self, record: FinishedRequest) -> None:
        """Count how long one finished request took."""
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
            engine_queue_wait=self.engine_queue_wait.take(),
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
        self.engine_queue_wait.give_back(delta.engine_queue_wait)
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


class Alike:
    """Finished requests that differ in nothing that is counted but in their tokens and times."""

    __slots__ = ("cached_tokens", "output_tokens", "pool", "prompt_tokens", "requests")

    def __init__(self, pool: PoolCounts | None) -> None:
        self.pool = pool  # where their times go; None: they came to no pool
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0

    def add(self, record: FinishedRequest) -> None:
        """Count one more."""
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_prompt_tokens
        self.output_tokens += record.output_tokens
        if self.pool is not None:
            self.pool.add_times(record)


class LeaseCounts:
    """What lease calls did, since this process began."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()  # answered, failed
        self.waits: Counter[str] = (
            Counter()
        )  # requests that waited: answered, failed, too_late, hung
        self.last_error = ""  # empty: the last call was answered
        self.seconds = Histogram()  # how long answered calls took

    def report(self) -> wire.LeaseHealth:
        """Give what the control plane is told."""
        answered = self.calls["answered"]
        return wire.LeaseHealth(
            answered=answered,
            failed=self.calls["failed"],
            waited=self.waits.total(),
            waited_in_vain=self.waits.total() - self.waits["answered"],
            mean_s=self.seconds.sum_s / answered if answered else None,
            last_error=self.last_error,
        )


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
        self.adapter_steps: Counter[tuple[str, str]] = Counter()  # by step and outcome
        self.adapter_bytes = 0  # fetched
        self.shadows: Counter[str] = Counter()  # copies of requests, by what became of them
        self.leases = LeaseCounts()
        # By model asked for, path, and what answered: requests, prompt, output and wasted tokens.
        self.paths: dict[tuple[str, str, str], list[int]] = {}
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
        found: dict[tuple[str, str, str, str, int], Alike] = {}
        for record in finished:
            key = (record.pool, record.model, record.version, record.tenant, record.status)
            alike = found.get(key)
            if alike is None:
                pool = self.pools[(record.pool, record.version)] if record.pool else None
                alike = found[key] = Alike(pool)
            alike.add(record)
        for (pool_name, model, version, tenant, status), alike in found.items():
            code = _CODES[status]
            labels = (pool_name, model or UNKNOWN_MODEL, version, code)
            self.requests[labels] += alike.requests
            self._count(alike, tenant, code)

    def _count(self, alike: Alike, tenant: str, code: str) -> None:
        if alike.pool is not None:
            alike.pool.requests.add(code, alike.requests)
            alike.pool.tokens.add("prompt", alike.prompt_tokens)
            alike.pool.tokens.add("cached", alike.cached_tokens)
            alike.pool.tokens.add("output", alike.output_tokens)
        if tenant:
            counts = self.tenants[tenant]
            counts.requests.add(code, alike.requests)
            counts.tokens.add("prompt", alike.prompt_tokens)
            counts.tokens.add("output", alike.output_tokens)

    def took_path(
        self, key: tuple[str, str, str], record: FinishedRequest, wasted_tokens: int
    ) -> None:
        """Count how it was decided which model or pool answered a request."""
        counts = self.paths.get(key)
        if counts is None:
            counts = self.paths[key] = [0, 0, 0, 0]
        counts[0] += 1
        counts[1] += record.prompt_tokens
        counts[2] += record.output_tokens
        counts[3] += wasted_tokens

    def paths_report(self) -> tuple[wire.ModelPath, ...]:
        """Give what the control plane is told of these."""
        return tuple(
            wire.ModelPath(
                model=model,
                path=path,
                answered_by=answered_by,
                requests=counts[0],
                prompt_tokens=counts[1],
                output_tokens=counts[2],
                wasted_tokens=counts[3],
            )
            for (model, path, answered_by), counts in self.paths.items()
        )

    def answered_locally(self, status: int) -> None:
        """Count a request that never got as far as a model; good ones are not traffic."""
        if status >= _BAD:
            self.requests[("", UNKNOWN_MODEL, "", _CODES[status])] += 1

    def retried(self, pool: wire.Pool) -> None:
        """Count one retry."""
        self.retries_total += 1
        self.pools[(pool.name, pool.version)].tokens.add("retries", 1)

    def shed(self, pool: wire.Pool, policy: wire.OverloadPolicy) -> None:
        """Count a request that overload turned away, or to another pool."""
        self.shed_total[policy] += 1
        self.pools[(pool.name, pool.version)].tokens.add("shed", 1)

    # -- off the request path ------------------------------------------------------------------

    def take_deltas(self) -> tuple[tuple[wire.PoolDelta, ...], tuple[wire.TenantDelta, ...]]:
        """Give what happened since the last call, and start anew."""
        self.settle()
        pools = [counts.take(*key) for key, counts in self.pools.items()]
        tenants = [_take_tenant(name, counts) for name, counts in self.tenants.items()]
        return (
            tuple(d for d in pools if d.requests or d.retries or d.shed or d.engine_queue_wait),
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

    def forget_gone(self, fleet: Fleet) -> None:
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
