"""One interface over all stores: which holds a chart's window, and what stands in for it.

Up to an hour: Prometheus where it is configured, else the recent store in Redis, with roll-ups in
its gaps. Longer: roll-ups, else Prometheus. The fleet, versions, nodes and tenants are only rolled
up. Every answer names its source, and a store that was wanted and did not answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from controlplane.domain import rollups
from controlplane.domain.amounts import counted
from controlplane.telemetry import from_prometheus, history, recent, rolling, series
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.prometheus import prometheus
from controlplane.telemetry.rolling import FLEET, POOL
from controlplane.telemetry.series import PoolSummary
from controlplane.telemetry.snapshots import MINUTE_S, RECENT, NoData, PoolStep, SeriesSet, Window

SUMMARY_MINUTES = 5
LINES_AT_MOST = 5  # and one for the rest
NODES_READ = 16  # GPUs of more nodes than this are read from the pool's roll-ups
Answer = SeriesSet | NoData
Frames = history.Frames
Found = tuple[Frames, str, str]  # points, their source, what is to be said
GpusFound = tuple[dict[int, Frames], str]  # points by index, their source

# Charts of one page share their points; a value lives shorter than a step.
_points = FlightCache(max_entries=256, ttl_s=4.0)


def pool_chart(pool: str, chart: str, window: Window) -> Answer:
    """Give one chart of a pool (see `series.READINGS`)."""
    asked = from_prometheus.pool_chart(prometheus(), pool, chart, window)
    if window.is_recent:
        if isinstance(asked, SeriesSet):
            return asked
        found = _explained(chart, _pool_points(pool, window), window)
        return found if asked is None else _instead(found, asked)
    kept = _explained(chart, _kept(POOL, pool, window), window)
    return asked if isinstance(kept, NoData) and isinstance(asked, SeriesSet) else kept


def replica_chart(pool: str, replica: str, chart: str, window: Window) -> Answer:
    """Give one chart of a replica."""
    key = ("replica", replica, _moment(window))

    def read() -> Found | NoData:
        if not window.is_recent:
            return _read(history.replica_frames(replica, window), window)
        steps = pool_steps(pool, window)
        if isinstance(steps, NoData):
            return _instead_of_recent(
                steps, lambda: history.replica_frames(replica, window), window
            )
        frames: Frames = [of_replica(s, replica, window.base_s) for s in steps]
        return _filled(frames, lambda: history.replica_frames(replica, window), window)

    return _explained(chart, _points.get((recent.store(), *key), read), window)


def level_chart(level: str, subject: str, chart: str, window: Window) -> Answer:
    """Give one chart of the fleet, a version, a node or a tenant, by the minute at the finest."""
    coarse = window.coarse
    return _explained(chart, _kept(level, subject, coarse), coarse)


def pools_chart(window: Window) -> Answer:
    """Give the request rates of the busiest pools, and of all the others together."""
    coarse = window.coarse
    return _points.get(("pools", _moment(coarse)), lambda: _by_pool(coarse))


def _by_pool(window: Window) -> Answer:
    names, count = history.busiest(POOL, window, LINES_AT_MOST)
    kept = history.request_frames(POOL, names, window)
    lines = {name: _rates(series.points(kept[name], window)) for name in names}
    whole = _kept(FLEET, "", window)
    if count > len(names) and not isinstance(whole, NoData):
        told = (sum(values[i] or 0.0 for values in lines.values()) for i in range(window.steps))
        lines[counted(count - len(names), "others")] = [
            None if all_ is None else max(0.0, all_ - shown)
            for all_, shown in zip(_rates(whole[0]), list(told), strict=True)
        ]
    note = f"The {len(names)} busiest of {count} pools have lines of their own."
    return _told(
        SeriesSet(
            window=window,
            unit="requests/s",
            series=lines,
            source=history.source_of(window),
            note=note if count > len(names) else "",
        )
    )


def _rates(points: Frames) -> list[float | None]:
    return [None if f is None else rollups.rate(f.requests, f) for f in points]


def gpu_chart(agent: str, indices: Sequence[int], figure: str, window: Window) -> Answer:
    """Give one figure of each GPU of an agent's node; `indices` are those known to be there."""
    found = _gpu_points(agent, tuple(indices), window)
    if isinstance(found, NoData):
        return found
    gpus, source = found
    return _told(series.gpu_lines(gpus, figure, window, source))


def gpu_spread(pool: str, chosen: Mapping[str, Sequence[int]], window: Window) -> Answer:
    """Give maximum and mean utilisation over chosen GPUs, by agent; those of a pool if it is named.

    Of a pool that is on many nodes, or of a long time, roll-ups tell, which hold the pool's GPUs.
    """
    if pool and (len(chosen) > NODES_READ or not window.is_recent):
        return level_chart(POOL, pool, "gpu", window)
    found = {a: _gpu_points(a, tuple(indices), window) for a, indices in chosen.items()}
    known = [f for f in found.values() if not isinstance(f, NoData)]
    if not known:
        reasons = [f.reason for f in found.values() if isinstance(f, NoData)]
        return NoData(reasons[0] if reasons else "No replica has GPUs assigned on a known node.")
    rows = [points for gpus, _ in known for points in gpus.values()]
    return _told(series.chart("gpu", series.merged(rows), window, known[0][1]))


def pool_steps(pool: str, window: Window) -> list[PoolStep | None] | NoData:
    """Read a pool's steps with enough before the window for its first point."""
    store, start_s, end_s, base_s = recent.store(), window.first_s, window.end_s, window.base_s
    key = (store, "steps", pool, start_s, end_s, base_s)
    return _points.get(key, lambda: store.pool_steps(pool, start_s, end_s, base_s))


def pool_summaries(pools: Sequence[str]) -> dict[str, PoolSummary] | NoData:
    """Sum each pool's last five minutes up, in one round trip for all."""
    now = time.time()

    def read() -> dict[str, PoolSummary] | NoData:
        rows = recent.store().pool_minutes(pools, now, SUMMARY_MINUTES)
        if isinstance(rows, NoData):
            return rows
        figures = {p: [rolling.pool_figures(m) if m else None for m in r] for p, r in rows.items()}
        return {p: series.summary(minutes) for p, minutes in figures.items()}

    return _points.get((recent.store(), "summaries", tuple(pools), int(now) // 2), read)


def _pool_points(pool: str, window: Window) -> Found | NoData:
    def read() -> Found | NoData:
        steps = pool_steps(pool, window)
        if isinstance(steps, NoData):
            return _instead_of_recent(steps, lambda: history.frames(POOL, pool, window), window)
        frames: Frames = [rolling.pool_figures(s, window.base_s) if s else None for s in steps]
        return _filled(frames, lambda: history.frames(POOL, pool, window), window)

    return _points.get((recent.store(), "pool", pool, _moment(window)), read)


def _kept(level: str, subject: str, window: Window) -> Found | NoData:
    key = ("kept", level, subject, _moment(window))
    return _points.get(key, lambda: _read(history.frames(level, subject, window), window))


def _gpu_points(agent: str, indices: tuple[int, ...], window: Window) -> GpusFound | NoData:
    def kept() -> GpusFound:
        found = history.gpu_frames(agent, indices, window)
        points = {i: series.points(frames, window) for i, frames in found.items()}
        return points, history.source_of(window)

    def read() -> GpusFound | NoData:
        if not window.is_recent:
            return kept()
        told = _told_gpus(agent, indices, window)
        if window.base_s != MINUTE_S:
            return told
        return _gpus_filled({} if isinstance(told, NoData) else told[0], kept(), told)

    return _points.get((recent.store(), "gpus", agent, indices, _moment(window)), read)


def _told_gpus(agent: str, indices: tuple[int, ...], window: Window) -> GpusFound | NoData:
    """Read GPUs from the recent store, which keeps them in steps of five seconds."""
    fine = replace(window, base_s=recent.STEP_S)
    steps = recent.store().gpu_steps(agent, fine.first_s, fine.end_s)
    if isinstance(steps, NoData):
        return steps
    told = {i for s in steps if s for i in s}
    seen = {i: [rolling.reading(s.get(i)) if s else None for s in steps] for i in sorted(told)}
    wanted = {i: frames for i, frames in seen.items() if not indices or i in indices}
    return {i: series.points(frames, fine) for i, frames in wanted.items()}, RECENT


def _gpus_filled(
    points: dict[int, Frames], kept: GpusFound, told: GpusFound | NoData
) -> GpusFound | NoData:
    """Put roll-ups into the gaps of what the recent store told, if it told anything."""
    rolled, source = kept
    known = {i for i, values in rolled.items() if any(v is not None for v in values)}
    if not known:
        return told
    whole = {
        i: [p if p is not None else r for p, r in zip_longest(points.get(i, ()), rolled.get(i, ()))]
        for i in sorted(points.keys() | known)
    }
    gaps = any(whole[i] != list(points.get(i, ())) for i in whole)
    if not gaps:
        return told
    return whole, f"{RECENT}, its gaps from {source}" if points else source


def of_replica(step: PoolStep | None, replica: str, base_s: int) -> rolling.Figures | None:
    """Narrow a pool's step to one replica; where nobody reported it there is a gap."""
    if step is None or replica not in step.replicas:
        return None
    return rolling.replica_figures(step.replicas[replica], rolling.covered_s(step, base_s))


def _filled(frames: Frames, kept: history.Reader, window: Window) -> Found:
    """Put roll-ups into the gaps of minutes: the recent store may have been emptied."""
    if window.base_s != MINUTE_S or None not in frames:
        return series.points(frames, window), RECENT, ""
    rolled = kept()
    whole = [f if f is not None else r for f, r in zip(frames, rolled, strict=True)]
    is_filled = any(f is None and r is not None for f, r in zip(frames, rolled, strict=True))
    source = f"{RECENT}, its gaps from {history.source_of(window)}" if is_filled else RECENT
    return series.points(whole, window), source, ""


def _instead_of_recent(missing: NoData, kept: history.Reader, window: Window) -> Found | NoData:
    """Draw an hour from roll-ups alone while the recent store does not answer."""
    if window.base_s != MINUTE_S:
        return missing
    points, source, _ = _read(kept(), window)
    return missing if all(p is None for p in points) else (points, source, missing.reason)


def _read(frames: Frames, window: Window) -> Found:
    return series.points(frames, window), history.source_of(window), ""


def _moment(window: Window) -> tuple[int, int, int]:
    return window.end_s, window.step_s, window.steps


def _explained(chart: str, found: Found | NoData, window: Window) -> Answer:
    if isinstance(found, NoData):
        return found
    points, source, note = found
    return _told(replace(series.chart(chart, points, window, source), note=note), points)


def _told(data: SeriesSet, points: Frames | None = None) -> Answer:
    if not data.is_empty:
        return data
    if points is not None and any(p is not None for p in points):
        return NoData("Reports came in this window, without a sample of this figure.")
    return NoData(
        f"Nothing was reported in this window, which ends at"
        f" {history.moment(data.window.end_s):%H:%M} UTC; looked in: {data.source}."
    )


def _instead(found: Answer, missing: NoData) -> Answer:
    if isinstance(found, NoData):
        return NoData(f"{missing.reason} {found.reason}")
    return replace(found, note=f"{missing.reason} {found.note}".strip())
