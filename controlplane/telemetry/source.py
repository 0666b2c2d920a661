"""One interface over both stores: Prometheus where it is configured and answers, else Redis.

Every answer says where it comes from; when Prometheus was wanted and did not answer, it says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.telemetry import queries, recent, series
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.prometheus import Rows, prometheus
from controlplane.telemetry.series import PoolSummary
from controlplane.telemetry.snapshots import PROMETHEUS, NoData, PoolStep, SeriesSet, Window

SUMMARY_MINUTES = 5
Answer = SeriesSet | NoData

# Charts of one page share their steps; a value lives shorter than a step.
_steps = FlightCache(max_entries=256, ttl_s=4.0)


def pool_chart(pool: str, chart: str, window: Window) -> Answer:
    """Give the series of one of a pool's charts (see `POOL_CHARTS`)."""
    wanted = _from_prometheus(pool, chart, window)
    if isinstance(wanted, SeriesSet):
        return wanted
    steps = pool_steps(pool, window)
    if isinstance(steps, NoData):
        return steps if wanted is None else NoData(f"{wanted.reason} {steps.reason}")
    answer = _explained(POOL_CHARTS[chart](steps, window))
    if wanted is not None and isinstance(answer, SeriesSet):
        return replace(answer, note=wanted.reason)
    return answer


def replica_chart(pool: str, replica: str, chart: str, window: Window) -> Answer:
    """Give the series of one of a replica's charts (see `REPLICA_CHARTS`)."""
    steps = pool_steps(pool, window)
    if isinstance(steps, NoData):
        return steps
    return _explained(REPLICA_CHARTS[chart](steps, window, replica))


def gpu_chart(agent: str, figure: str, window: Window) -> Answer:
    """Give one figure of each GPU of an agent's node."""
    key = (recent.store(), "gpu", agent, window.start_s, window.end_s)
    steps = _steps.get(key, lambda: recent.store().gpu_steps(agent, window.start_s, window.end_s))
    return (
        steps if isinstance(steps, NoData) else _explained(series.gpu_series(steps, window, figure))
    )


def gpu_spread(chosen: Mapping[str, Sequence[int]], figure: str, window: Window) -> Answer:
    """Give maximum and mean of one figure over chosen GPUs, by agent."""
    found = {agent: gpu_chart(agent, figure, window) for agent in chosen}
    known = {agent: data for agent, data in found.items() if isinstance(data, SeriesSet)}
    if not known:
        reasons = [data.reason for data in found.values() if isinstance(data, NoData)]
        return NoData(reasons[0] if reasons else "No replica has GPUs assigned on a known node.")
    return _explained(series.gpu_spread(list(known.values()), [chosen[a] for a in known]))


def pool_steps(pool: str, window: Window) -> list[PoolStep | None] | NoData:
    """Read a pool's steps with enough before the window for its first point."""
    start_s = window.start_s - (window.span_s - window.step_s)
    start_s = start_s // window.base_s * window.base_s
    store, end_s, base_s = recent.store(), window.end_s, window.base_s
    key = (store, "pool", pool, start_s, end_s, base_s)
    return _steps.get(key, lambda: store.pool_steps(pool, start_s, end_s, base_s))


def pool_summaries(pools: Sequence[str]) -> dict[str, PoolSummary] | NoData:
    """Sum each pool's last five minutes up, in one round trip for all."""
    now = time.time()

    def read() -> dict[str, PoolSummary] | NoData:
        rows = recent.store().pool_minutes(pools, now, SUMMARY_MINUTES)
        if isinstance(rows, NoData):
            return rows
        return {p: series.summary(m, covered_s=_covered_s(m, now)) for p, m in rows.items()}

    return _steps.get((recent.store(), "summaries", tuple(pools), int(now) // 2), read)


def _covered_s(minutes: Sequence[PoolStep | None], now: float) -> float:
    """Give how long the reported minutes last; the newest has only begun."""
    whole = sum(recent.SUMMARY_S for m in minutes[:-1] if m is not None)
    begun = now % recent.SUMMARY_S if minutes and minutes[-1] is not None else 0.0
    return max(1.0, whole + begun)


def _explained(data: SeriesSet) -> Answer:
    if data.is_empty:
        return NoData("Nothing was reported in this window: no samples, or no agent sent reports.")
    return data


def _from_prometheus(pool: str, chart: str, window: Window) -> SeriesSet | NoData | None:
    """Ask Prometheus; None when it is not configured or does not hold this chart."""
    client = prometheus()
    if client is None or chart not in PROMETHEUS_CHARTS:
        return None
    span = f"{max(window.span_s, 30)}s"  # two scrapes at least

    def ask(query: queries.Query) -> Rows | NoData:
        return client.over(query.text(pool=pool, range=span), query.label, window)

    return PROMETHEUS_CHARTS[chart](ask, window)


Ask = Callable[[queries.Query], Rows | NoData]


def _quantiles(metric: str) -> Callable[[Ask, Window], SeriesSet | NoData]:
    def read(ask: Ask, window: Window) -> SeriesSet | NoData:
        rows: Rows = {}
        for name, query in queries.LATENCIES[metric].items():
            answer = ask(query)
            if isinstance(answer, NoData):
                return answer
            rows[name] = answer.get("", [None] * window.steps)
        found = SeriesSet(window=window, unit="s", series=rows, source=PROMETHEUS)
        return NoData("Prometheus has no samples in this window.") if found.is_empty else found

    return read


def _outcomes(ask: Ask, window: Window) -> SeriesSet | NoData:
    rows = ask(queries.REQUESTS)
    if isinstance(rows, NoData):
        return rows
    summed: Rows = {}
    for status, values in rows.items():
        row = summed.setdefault(series.outcome(status), [None] * window.steps)
        for i, value in enumerate(values):
            if value is not None:
                row[i] = (row[i] or 0.0) + value
    ordered = {name: summed[name] for name in series.OUTCOMES if name in summed}
    return SeriesSet(window=window, unit="requests/s", series=ordered, source=PROMETHEUS)


POOL_CHARTS: dict[str, Callable[[list[PoolStep | None], Window], SeriesSet]] = {
    "ttft": lambda s, w: series.latency_series(s, w, "ttft"),
    "tpot": lambda s, w: series.latency_series(s, w, "tpot"),
    "e2e": lambda s, w: series.latency_series(s, w, "e2e"),
    "queue-wait": lambda s, w: series.latency_series(s, w, "queue_wait"),
    "requests": series.request_series,
    "kv": series.kv_series,
    "tokens": series.token_series,
    "load": series.load_series,
}
REPLICA_CHARTS: dict[str, Callable[[list[PoolStep | None], Window, str], SeriesSet]] = {
    "requests": series.replica_rates,
    "tokens": series.replica_tokens,
    "load": lambda s, w, r: series.load_series(series.of_replica(s, r), w),
    "kv": series.replica_kv,
}
PROMETHEUS_CHARTS: dict[str, Callable[[Ask, Window], SeriesSet | NoData]] = {
    "ttft": _quantiles("ttft"),
    "tpot": _quantiles("tpot"),
    "e2e": _quantiles("e2e"),
    "queue-wait": _quantiles("queue_wait"),
    "requests": _outcomes,
}
