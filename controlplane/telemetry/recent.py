"""The recent-metrics store: what the agents reported in the last hour, in Redis, in 5 s steps.

It may be lost at any time; then there is a gap, never a zero. Nothing decides by it alone.

Memory is bounded by time: every key expires. A pool's step is one hash of about 40 small fields and
one packed field a replica, near 1 KB for eight replicas; 720 steps make an hour.

Keys: `sb:agent:<id>` newest report · `sb:agents` who reported when · `sb:counters:<id>` the agent's
counters as last booked · `sb:pool:<slug>:<step>` and `sb:minute:<slug>:<minute>` sums over agents ·
`sb:placed:<id>` what it placed, for the other agents ·
`sb:stretch:<slug>:<begin>:<end>` sums over an outage, known by `sb:stretches:<slug>` ·
`sb:gpu:<agent>:<minute>` readings · `sb:preempted:<pool>` engines' own counts, which several
agents tell · `sb:told:<minute>` which subjects have a minute · `sb:dirty` minutes to roll up, by
when they last changed. They are derived inside a script: a Redis Cluster will not do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import redis
import structlog
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.telemetry import packing, scripts, spreading
from controlplane.telemetry.snapshots import GpuStep, Minute, NoData, PoolStep
from routing_agent.wire import AgentPlaced, Report

log = structlog.get_logger()

STEP_S = 5
KEEP_S = 3600
SUMMARY_S = 60
CIRCUIT_S = 2.0
EXCHANGED_S = 6  # how long what an agent placed is news: three of its reports
EXCHANGED_BYTES = 256 * 1024  # of others' placements in the answer to one report


class RecentStore:
    """Books reports and reads them back; every call ends within a few tenths of a second."""

    def __init__(self, url: str, *, timeout_s: float, clock: Callable[[], float] = time.monotonic):
        self.url = url
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._book = self._redis.register_script(scripts.BOOK)
        self._clean = self._redis.register_script(scripts.CLEAN)
        self._clock = clock
        self._shut_until = 0.0
        self._last_error = ""

    def book(self, report: Report, now: float) -> None:
        """Store one report; a store that is gone costs one time-out every two seconds, no more."""
        keys = [f"sb:agent:{report.agent}", "sb:agents", f"sb:counters:{report.agent}"]
        operations = packing.operations(report, now, keep_s=KEEP_S)
        newest = packing.newest(report, now)
        self._guarded(lambda: self._book(keys=keys, args=[operations, newest]))

    def latest_reports(self) -> dict[str, tuple[Report, float]] | NoData:
        """Give each agent's newest report with its age in seconds, for an hour back."""
        agents = self._guarded(lambda: self._redis.zrange("sb:agents", 0, -1))
        if isinstance(agents, NoData) or not agents:
            return agents or {}
        names = [a.decode() for a in agents]
        blobs = self._guarded(lambda: self._redis.mget([f"sb:agent:{n}" for n in names]))
        if isinstance(blobs, NoData):
            return blobs
        now = time.time()
        found = {n: packing.read_newest(b) for n, b in zip(names, blobs, strict=True) if b}
        return {n: (got[0], max(0.0, now - got[1])) for n, got in found.items() if got}

    def exchange(self, report: Report, now: float) -> tuple[AgentPlaced, ...] | NoData:
        """Keep what an agent placed for a few seconds, and give what the others did.

        At most `EXCHANGED_BYTES` of it; with many agents another part of them each time.
        """
        told = AgentPlaced(
            agent=report.agent,
            number=report.number,
            placed=report.placed or (),
            peer=report.peer,
        )
        key = f"sb:placed:{report.agent}"

        def swap() -> Any:
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(key, msgspec.msgpack.encode(told), ex=EXCHANGED_S)
            pipe.zrangebyscore("sb:agents", now - EXCHANGED_S, "+inf")
            names = [a.decode() for a in pipe.execute()[1] if a.decode() != report.agent]
            random.shuffle(names)
            return self._redis.mget([f"sb:placed:{name}" for name in names]) if names else []

        blobs = self._guarded(swap)
        if isinstance(blobs, NoData):
            return blobs
        found, room = [], EXCHANGED_BYTES
        for blob in blobs:
            if blob is not None and len(blob) <= room:
                room -= len(blob)
                found.append(msgspec.msgpack.decode(blob, type=AgentPlaced))
        return tuple(found)

    def pool_steps(
        self, pool: str, start_s: int, end_s: int, base_s: int = STEP_S
    ) -> list[PoolStep | None] | NoData:
        """Read a pool's steps (or minutes) of [start, end); None where no agent reported."""
        rows = self._pool_rows([pool], range(start_s, end_s, base_s))
        return rows if isinstance(rows, NoData) else rows[pool]

    def pool_minutes(
        self, pools: Sequence[str], now: float, minutes: int
    ) -> dict[str, list[PoolStep | None]] | NoData:
        """Read summaries for many pools at once: a list of minutes for each, oldest first."""
        newest = int(now) // SUMMARY_S * SUMMARY_S
        first = newest - SUMMARY_S * (minutes - 1)
        return self._pool_rows(pools, range(first, newest + SUMMARY_S, SUMMARY_S))

    def _pool_rows(
        self, pools: Sequence[str], times: range
    ) -> dict[str, list[PoolStep | None]] | NoData:
        """Read steps or minutes of pools, with what outages left in stretches spread over them."""
        kind = "pool" if times.step == STEP_S else "minute"
        rows = self._hashes([f"sb:{kind}:{p}:{at}" for p in pools for at in times])
        if isinstance(rows, NoData):
            return rows
        stretches = self._stretches(pools, times.start)
        if isinstance(stretches, NoData):
            return stretches
        found: dict[str, list[PoolStep | None]] = {}
        for i, pool in enumerate(pools):
            own = rows[i * len(times) : (i + 1) * len(times)]
            whole = spreading.fill(own, stretches[pool], times.start, times.step)
            found[pool] = [packing.read_pool(row) if row else None for row in whole]
        return found

    def _stretches(
        self, pools: Sequence[str], after_s: int
    ) -> dict[str, list[spreading.Stretch]] | NoData:
        """Read the stretches of pools that end after a moment: seldom any."""

        def read() -> dict[str, list[spreading.Stretch]]:
            pipe = self._redis.pipeline(transaction=False)
            for pool in pools:
                pipe.zrangebyscore(f"sb:stretches:{pool}", f"({after_s}", "+inf")
            known = list(zip(pools, pipe.execute(), strict=True))
            for pool, members in known:
                for member in members:
                    pipe.hgetall(f"sb:stretch:{pool}:{member.decode()}")
            hashes = iter(pipe.execute())
            return {p: [packing.read_stretch(m, next(hashes)) for m in ms] for p, ms in known}

        return self._guarded(read)

    def dirty_minutes(self) -> dict[int, float] | NoData:
        """Give the minutes that changed since they were rolled up, oldest first, and when."""
        found = self._guarded(lambda: self._redis.zrange("sb:dirty", 0, -1, withscores=True))
        if isinstance(found, NoData):
            return found
        return dict(sorted((int(minute), at) for minute, at in found))

    def clean(self, minute: int, changed_at: float) -> None:
        """Say that a minute is rolled up as it was at `changed_at`; one changed since stays."""
        self._guarded(lambda: self._clean(keys=["sb:dirty"], args=[minute, repr(changed_at)]))

    def minute(self, minute_s: int) -> Minute | NoData:
        """Read all that was told of one minute."""
        members = self._guarded(lambda: self._redis.smembers(f"sb:told:{minute_s}"))
        if isinstance(members, NoData):
            return members
        names = sorted(m.decode() for m in members)
        agents = [n.removeprefix("gpu/") for n in names if n.startswith("gpu/")]
        subjects = [n for n in names if not n.startswith("gpu/")]
        rows = self._pool_rows(subjects, range(minute_s, minute_s + SUMMARY_S, SUMMARY_S))
        if isinstance(rows, NoData):
            return rows
        readings = self._hashes([f"sb:gpu:{agent}:{minute_s}" for agent in agents])
        if isinstance(readings, NoData):
            return readings
        gpus: dict[str, dict[int, dict[int, GpuStep]]] = {agent: {} for agent in agents}
        for agent, row in zip(agents, readings, strict=True):
            packing.read_gpus(row, minute_s, into=gpus[agent])
        return Minute(subjects={n: steps[0] for n, steps in rows.items() if steps[0]}, gpus=gpus)

    def gpu_steps(
        self, agent: str, start_s: int, end_s: int
    ) -> list[dict[int, GpuStep] | None] | NoData:
        """Read an agent's GPU readings in 5 s steps of [start, end); None: it did not report."""
        first = start_s // SUMMARY_S * SUMMARY_S
        minutes = range(first, end_s, SUMMARY_S)
        rows = self._hashes([f"sb:gpu:{agent}:{at}" for at in minutes])
        if isinstance(rows, NoData):
            return rows
        found: dict[int, dict[int, GpuStep]] = {}
        for minute, row in zip(minutes, rows, strict=True):
            packing.read_gpus(row, minute, into=found)
        return [found.get(at) for at in range(start_s, end_s, STEP_S)]

    def problem(self) -> str:
        """Say what is wrong with the store, or nothing when it answers."""
        answer = self._guarded(self._redis.ping)
        return answer.reason if isinstance(answer, NoData) else ""

    def _hashes(self, keys: Iterable[str]) -> list[dict[bytes, bytes]] | NoData:
        def read() -> list[dict[bytes, bytes]]:
            pipe = self._redis.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(key)
            return list(pipe.execute())

        return self._guarded(read)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Run one call; after a failure answer `NoData` at once for two seconds."""
        if self._clock() < self._shut_until:
            return NoData(self._last_error)
        try:
            return call()
        except (redis.RedisError, OSError) as error:
            self._shut_until = self._clock() + CIRCUIT_S
            self._last_error = f"Redis does not answer ({type(error).__name__}): no recent figures."
            log.warning("recent_store_unreachable", error=str(error))
            return NoData(self._last_error)


_store: RecentStore | None = None


def store() -> RecentStore:
    """Give this process's store, made at first use so that forked workers make their own."""
    global _store
    if _store is None or _store.url != settings.REDIS_URL:
        _store = RecentStore(settings.REDIS_URL, timeout_s=settings.REDIS_TIMEOUT_S)
    return _store


def book(report: Report, now: float) -> None:
    """Store one report in this process's store."""
    store().book(report, now)


def exchange(report: Report, now: float) -> tuple[AgentPlaced, ...] | NoData:
    """Keep what an agent placed, and give what the others did lately."""
    return store().exchange(report, now)


def latest_reports() -> dict[str, tuple[Report, float]] | NoData:
    """Give each agent's newest report with its age in seconds."""
    return store().latest_reports()


__all__ = ["RecentStore", "book", "exchange", "latest_reports", "store"]
