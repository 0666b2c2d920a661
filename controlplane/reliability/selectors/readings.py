"""What each rule sees now: readings of pools, replicas, nodes and loops, with why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controlplane.domain import latency, rollups
from controlplane.domain.alerts import Reading
from controlplane.domain.amounts import counted
from controlplane.domain.replica_states import State
from controlplane.domain.rollups import Figures
from controlplane.domain.throughput import Recent, compared
from controlplane.fleet import rows
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Pool, Replica
from controlplane.reliability.selectors import throughput
from controlplane.reliability.selectors.slos import Promise, promises
from controlplane.routing import beat
from controlplane.routing import selectors as routing
from controlplane.routing.models import LoopRun
from controlplane.telemetry import live, recent, rolling
from controlplane.telemetry.live import FRESH_S, Reports
from controlplane.telemetry.snapshots import NoData
from routing_agent.wire import Report

# A percentile of fewer says little: with 20 the P99 is the slowest, twice in a row no accident.
SAMPLES_LEAST: Final = 20
MINUTES_LOOKED_AT: Final = 2  # the one that runs and the one before: 60 to 120 seconds
LOOP_LEAST_S: Final = 20.0 / 3  # a loop of few seconds is not late before 20 s
SILENT: Final = "no agent reported it lately"
QUIET: Final = "no agent reported this pool in the last two minutes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything the rules look at, read once for all of them."""

    now: datetime
    reports: Reports | NoData
    pools: list[Pool]
    figures: Mapping[str, Figures]  # of the last one to two minutes
    no_figures: str  # why there are none at all
    promises: Mapping[str, Promise]
    long: Mapping[str, Recent]  # of the last five minutes that were rolled up
    readings: dict[str, list[Reading]] = field(default_factory=dict)


def look(now: datetime) -> Seen:
    """Read it all: a constant number of queries and two round trips to Redis."""
    pools = list(fleet.pools_overview().select_related("slo"))
    slugs = [p.slug for p in pools]
    minutes = recent.store().pool_minutes(slugs, now.timestamp(), MINUTES_LOOKED_AT)
    figures: dict[str, Figures] = {}
    if not isinstance(minutes, NoData):
        for pool, steps in minutes.items():
            told = [rolling.pool_figures(step) for step in steps if step]
            if told:
                figures[pool] = rollups.over_time(told)
    return Seen(
        now=now,
        reports=rows.reports(),
        pools=pools,
        figures=figures,
        no_figures=minutes.reason if isinstance(minutes, NoData) else "",
        promises={p.pool: p for p in promises()},
        long=throughput.read(slugs, now),
    )


def readings(seen: Seen) -> dict[str, list[Reading]]:
    """Give the readings of each rule by its name; a subject without one is gone."""
    found: dict[str, list[Reading]] = {name: [] for name in _OF_POOLS}
    for pool in seen.pools:
        for name, read in _OF_POOLS.items():
            reading = read(seen, pool)
            if reading is not None:
                found[name].append(reading)
    found["replica-down"] = list(_replicas())
    found["replica-failing"] = list(_failing(seen))
    found["agent-silent"], found["agent-behind"] = _agents(seen)
    found["loop-late"] = list(_loops(seen.now))
    return found


# -- pools -----------------------------------------------------------------------------------------


def _none(pool: Pool, why: str, *, is_idle: bool = False) -> Reading:
    return Reading(subject=pool.slug, pool=pool.slug, missing=why, is_idle=is_idle)


def _figures(seen: Seen, pool: Pool) -> Figures | str:
    return seen.figures.get(pool.slug) or seen.no_figures or QUIET


def _ttft(seen: Seen, pool: Pool) -> Reading:
    return _percentile(seen, pool, "ttft", seen.promises[pool.slug].objectives.ttft_p99_s)


def _tpot(seen: Seen, pool: Pool) -> Reading:
    return _percentile(seen, pool, "tpot", seen.promises[pool.slug].objectives.tpot_p99_s)


def _percentile(seen: Seen, pool: Pool, metric: str, promised_s: float) -> Reading:
    figures = _figures(seen, pool)
    if isinstance(figures, str):
        return _none(pool, figures)
    histogram = getattr(figures, metric)
    samples = latency.sample_count(histogram)
    if samples < SAMPLES_LEAST:
        return _none(
            pool,
            f"{counted(samples, 'requests')} in two minutes: too few for a percentile",
            is_idle=True,
        )
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=latency.percentile(histogram, 0.99),
        threshold=promised_s,
        text=f"{metric.upper()} P99 of {samples} requests in {figures.covered_s} s.",
    )


def _errors(seen: Seen, pool: Pool) -> Reading:
    figures = _figures(seen, pool)
    if isinstance(figures, str):
        return _none(pool, figures)
    if figures.requests < SAMPLES_LEAST:
        return _none(
            pool,
            f"{counted(figures.requests, 'requests')} in two minutes: too few for a share",
            is_idle=True,
        )
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=figures.failed / figures.requests,
        text=f"{figures.failed} of {figures.requests} requests failed in {figures.covered_s} s.",
    )


def _queue(seen: Seen, pool: Pool) -> Reading:
    """Give who waits now: an engine is counted once, each agent's own queue adds."""
    if isinstance(seen.reports, NoData):
        return _none(pool, seen.reports.reason)
    fresh = [r for r, age_s in seen.reports.values() if age_s <= FRESH_S]
    members = {r.replica for report in fresh for r in report.replicas if r.pool == pool.slug}
    now = live.replicas(seen.reports)
    waiting = [n for m in members if (n := now[m].waiting) is not None]
    lines = [n for report in fresh if (n := agent_queue(report, pool.slug)) is not None]
    if not waiting and not lines:
        return _none(pool, "no engine of this pool and no agent tells who waits")
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=sum(waiting) + sum(lines),
        text=f"{sum(waiting)} wait in engines, {sum(lines)} in agents.",
    )


def agent_queue(report: Report, pool: str) -> int | None:
    """Give who waits in an agent's own queue of a pool; None where it does not tell."""
    if report.waiting is None:
        return None
    return sum(w.requests for w in report.waiting if w.pool == pool)


def _kv(seen: Seen, pool: Pool) -> Reading:
    if isinstance(seen.reports, NoData):
        return _none(pool, seen.reports.reason)
    members = {
        r.replica for report, _ in seen.reports.values() for r in report.replicas
        if r.pool == pool.slug
    }  # fmt: skip
    now = live.replicas(seen.reports)
    value = live.kv_usage_max(now[m] for m in members)
    if value is None:
        return _none(pool, "no engine of this pool tells its KV usage")
    return Reading(
        subject=pool.slug, pool=pool.slug, value=value, text="The fullest replica, just now."
    )


def _preemptions(seen: Seen, pool: Pool) -> Reading:
    figures = _figures(seen, pool)
    if isinstance(figures, str):
        return _none(pool, figures)
    if figures.preemptions is None or not figures.covered_s:
        return _none(pool, "no engine of this pool counts preemptions")
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=figures.preemptions * 60 / figures.covered_s,
        text=f"{counted(figures.preemptions, 'requests')} preempted in {figures.covered_s} s.",
    )


def _gpus(seen: Seen, pool: Pool) -> Reading:
    told = seen.long.get(pool.slug)
    value = rollups.utilization_mean(told.now) if told else None
    if told is None or value is None:
        return _none(pool, "no GPU of this pool tells its utilisation")
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=value,
        text="Mean over the pool's GPUs and five minutes.",
        age_s=told.age_s,
    )


def _throughput(seen: Seen, pool: Pool) -> Reading:
    told = seen.long.get(pool.slug)
    if told is None:
        return _none(pool, "nothing of the last five minutes was rolled up")
    ratio, text = compared(told)
    if ratio is None:
        return _none(pool, text)
    return Reading(subject=pool.slug, pool=pool.slug, value=ratio, text=text, age_s=told.age_s)


def _pool_down(seen: Seen, pool: Pool) -> Reading | None:
    counts = rows.counts_of(pool)
    if counts.live == 0:
        return None  # it has no replicas: nothing is down
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=counts.ready,
        text=f"{counts.ready} of {counted(counts.live, 'replicas')} ready.",
    )


def _spelt(window: str) -> str:
    """Say a window in words: `5m` → `5 m`."""
    return f"{window[:-1]} {window[-1]}"


def _burn(long: str, short: str) -> Callable[[Seen, Pool], Reading]:
    def read(seen: Seen, pool: Pool) -> Reading:
        rates = seen.promises[pool.slug].burn_rates
        a, b = rates[long], rates[short]
        if a is None or b is None:
            return _none(pool, f"nothing was reported in the last {_spelt(short)}")
        return Reading(
            subject=pool.slug,
            pool=pool.slug,
            value=min(a, b),  # both have to be over: the short one ends the alarm soon
            text=f"{a:.1f}x over {_spelt(long)}, {b:.1f}x over {_spelt(short)}.",
            age_s=_booked_age_s(seen, pool),
        )

    return read


def _booked_age_s(seen: Seen, pool: Pool) -> float:
    until = seen.promises[pool.slug].booked_until
    return max(0.0, (seen.now - until).total_seconds()) if until else 0.0


def _budget(seen: Seen, pool: Pool) -> Reading:
    budget = seen.promises[pool.slug].budget
    if budget.state == "no-data":
        return _none(pool, budget.reason)
    return Reading(
        subject=pool.slug,
        pool=pool.slug,
        value=budget.spent_ratio,
        text=budget.reason,
        age_s=_booked_age_s(seen, pool),
    )


_OF_POOLS: Final[Mapping[str, Callable[[Seen, Pool], Reading | None]]] = {
    "ttft-high": _ttft,
    "ttft-over-slo": _ttft,
    "tpot-over-slo": _tpot,
    "throughput-down": _throughput,
    "queue-long": _queue,
    "gpu-low": _gpus,
    "gpu-high": _gpus,
    "errors-high": _errors,
    "kv-high": _kv,
    "preemptions": _preemptions,
    "pool-down": _pool_down,
    "burn-fast": _burn("1h", "5m"),
    "burn-slow": _burn("6h", "30m"),
    "budget-half": _budget,
    "budget-exhausted": _budget,
}

# -- replicas, nodes, loops ------------------------------------------------------------------------


def _replicas() -> Iterator[Reading]:
    """Judge replicas that serve, or should: not those an operator took out or that start."""
    down = [State.FAILED, State.EJECTED]
    found = Replica.objects.select_related("pool").filter(state__in=[*down, State.READY])
    for replica in found.exclude(ejected_by_operator=True):
        is_down = State(replica.state) in down
        yield Reading(
            subject=replica.public_id,
            pool=replica.pool.slug,
            value=0 if is_down else 1,
            text=f"It is {replica.state}: {replica.state_reason or 'no reason told'}.",
        )


def _failing(seen: Seen) -> Iterator[Reading]:
    """Judge replicas that serve by whether an agent keeps traffic away from them."""
    now = live.replicas(seen.reports)
    serving = Replica.objects.select_related("pool").filter(state=State.READY)
    for replica in serving:
        told = now.get(replica.public_id)
        subject, pool = replica.public_id, replica.pool.slug
        if told is None or not told.is_fresh:
            missing = seen.reports.reason if isinstance(seen.reports, NoData) else SILENT
            yield Reading(subject=subject, pool=pool, missing=missing)
            continue
        agents = counted(told.agents, "agents")
        yield Reading(
            subject=subject,
            pool=pool,
            value=0 if told.is_broken else 1,
            text=f"Its breaker is open on {told.breakers_open} of {agents}.",
        )


def _agents(seen: Seen) -> tuple[list[Reading], list[Reading]]:
    lags = routing.delivery_lag()
    silent, behind = [], []
    for agent in fleet.agents():
        report = None if isinstance(seen.reports, NoData) else seen.reports.get(agent.public_id)
        at = rows.seen(agent, report[1] if report else None) or agent.registered_at
        silence_s = max(0.0, (seen.now - at).total_seconds())
        name = agent.node.name
        text = f"Last heard {silence_s:.0f} s ago."
        silent.append(Reading(subject=name, value=silence_s, text=text))
        lag_s = lags.get(agent.public_id)
        behind.append(
            Reading(subject=name, value=lag_s or 0.0, text=f"It runs epoch {agent.applied_epoch}.")
        )
    return silent, behind


def _loops(now: datetime) -> Iterable[Reading]:
    # Only loops that beat still starts: one that was renamed left its last run behind.
    for run in LoopRun.objects.filter(name__in=beat.intervals()).order_by("name"):
        age_s = max(0.0, (now - run.started_at).total_seconds())
        yield Reading(
            subject=run.name,
            value=age_s / max(run.interval_s, LOOP_LEAST_S),
            text=f"It ran {age_s:.0f} s ago and should every {run.interval_s:g} s.",
        )
