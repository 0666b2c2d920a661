"""What the agent counts: plain integers on the request path, text and report deltas off it.

Series stay bounded: labels are pools, models, versions, replicas and tenants of the current table;
whatever a client made up shares one value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.counts import Alike, LeaseCounts, PoolCounts, TenantCounts

UNKNOWN_MODEL: Final = "unknown"


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
        self.held_total: Counter[str] = Counter()  # by pool: held back until there was room
        self.spills_total: Counter[tuple[str, str]] = Counter()  # by pool and reason
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
