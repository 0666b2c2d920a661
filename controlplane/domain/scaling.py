"""How many replicas a pool wants, and why. Pure: what is known goes in, a verdict comes out.

Signals are how long requests wait (in the agents' queues and in the engines' together) and how full
the KV caches are; never requests a second, never CPU. Up at once, down after a long calm, and never
down on what is not known. Starting replicas count as capacity; draining ones count for nothing, and
cause nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controlplane.domain.amounts import counted
from controlplane.domain.replica_states import State
from controlplane.domain.scaling_inputs import (
    Demand,
    Member,
    Override,
    Past,
    Policy,
    Signal,
    batch_usage,
    mean_kv_usage,
    queue_length,
    queue_wait_s,
)

_STARTING = frozenset({State.PENDING, State.LOADING, State.WARMING, State.WAKING})
CALM_RATIO = 0.5  # of the queue-wait limit: only below it is anything taken away


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Replicas that serve or are meant to, spares apart."""

    ready: int = 0
    starting: int = 0
    ejected: int = 0
    failed: int = 0  # they are restarted
    draining: int = 0
    spares: int = 0
    lost: int = 0  # on nodes that nobody hears, and not serving

    @property
    def current(self) -> int:
        """Give what counts as capacity, present or on its way."""
        return self.ready + self.starting + self.ejected + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How many replicas a pool wants beside its spares, and why; shown as it stands."""

    wanted: int
    raw: int  # what the signals alone ask for
    code: str  # what kind of verdict this is: up, down, keep, hold, bounds, people, override
    reason: str
    limit: str = ""  # which limit changed the raw want
    below_since: datetime | None = None
    is_alarm: bool = False  # a person should look: what is needed is not known
    signals: tuple[Signal, ...] = ()


def count(members: Sequence[Member]) -> Counts:
    """Count members by what they are to the pool."""
    serving = [m for m in members if not m.is_spare and not m.is_lost]

    def of(*states: State) -> int:
        return sum(m.state in states for m in serving)

    return Counts(
        ready=of(State.READY),
        starting=of(*_STARTING),
        ejected=of(State.EJECTED),
        failed=of(State.FAILED),
        draining=of(State.DRAINING),
        spares=sum(m.is_spare and m.state is not State.STOPPED for m in members),
        lost=sum(m.is_lost and not m.is_spare for m in members),
    )


def decide(
    policy: Policy,
    members: Sequence[Member],
    demand: Demand,
    past: Past,
    *,
    override: Override | None = None,
    now: datetime,
) -> Verdict:
    """Say how many replicas the pool wants, never outside the policy's bounds."""
    counts = count(members)
    signals = signals_of(policy, members, demand)
    verdict = (
        _by_people(policy, override)
        or _at_bounds(policy, counts)
        or _from_nothing(counts, demand)
        or _blind(counts, members, demand)
        or _up(policy, counts, members, demand, past, now)
        or _down(policy, counts, members, demand, past, now)
    )
    bounded = policy.bounded(verdict.wanted)
    limit = verdict.limit
    if bounded != verdict.wanted:
        limit = f"bounds {policy.bounds}"
    return replace(verdict, wanted=bounded, limit=limit, signals=signals)


def _by_people(policy: Policy, override: Override | None) -> Verdict | None:
    if override is not None:
        until = f"{override.expires_at:%H:%M:%S}"
        reason = f"{override.by} wants {override.count} until {until} UTC: {override.reason}"
        return Verdict(wanted=override.count, raw=override.count, code="override", reason=reason)
    if not policy.enabled:
        reason = f"scaling is off: {policy.wanted_by_people} wanted, as set by people"
        wanted = policy.wanted_by_people
        return Verdict(wanted=wanted, raw=wanted, code="people", reason=reason)
    return None


def _at_bounds(policy: Policy, counts: Counts) -> Verdict | None:
    current = counts.current
    if current < policy.min_replicas:
        lost = f", {counts.lost} lost with their nodes" if counts.lost else ""
        reason = f"{counted(current, 'replicas')}{lost}: below the least, {policy.min_replicas}"
        return _verdict(policy.min_replicas, "bounds", reason, raw=current)
    if current > policy.max_replicas:
        reason = f"{counted(current, 'replicas')}: above the most, {policy.max_replicas}"
        return _verdict(policy.max_replicas, "bounds", reason, raw=current)
    return None


def _from_nothing(counts: Counts, demand: Demand) -> Verdict | None:
    if counts.current:
        return None
    if demand.waiting:
        reason = f"{demand.waiting} requests wait and there is no replica"
        return _verdict(1, "up", reason)
    said = "nobody waits" if demand.waiting is not None else f"not known: {demand.missing}"
    return _verdict(0, "keep", f"no replica, and {said}")


def _blind(counts: Counts, members: Sequence[Member], demand: Demand) -> Verdict | None:
    """Hold what is there while nothing is known of it."""
    if not counts.ready:
        reason = f"no replica is ready yet: {counts.current} on their way"
        return _verdict(counts.current, "keep", reason)
    if demand.missing:
        return _held(counts, demand.missing)
    unknown = _unknown(members)
    if len(unknown) == counts.ready:
        return _held(counts, f"no figures of any of {counts.ready} replicas: {unknown[0].missing}")
    return None


def _held(counts: Counts, why: str) -> Verdict:
    reason = f"held at {counts.current}: {why}"
    return replace(_verdict(counts.current, "hold", reason), is_alarm=True)


def _up(
    policy: Policy,
    counts: Counts,
    members: Sequence[Member],
    demand: Demand,
    past: Past,
    now: datetime,
) -> Verdict | None:
    """Add replicas where a limit is passed by more than the tolerance."""
    worst = max(signals_of(policy, members, demand), key=lambda s: s.pressure)
    if worst.pressure <= 1 + policy.tolerance_ratio:
        return None
    raw = math.ceil(counts.ready * min(worst.pressure, policy.step_factor) - 1e-9)
    if policy.max_step is not None:
        raw = min(raw, counts.ready + policy.max_step)
    current, said = counts.current, worst.sentence()
    if raw <= current:
        on_their_way = current - counts.ready
        reason = f"{said}; {on_their_way} on their way will cover it"
        return _verdict(current, "keep", reason, raw=raw, limit="pending")
    if current >= policy.max_replicas:
        reason = f"{said}, but {policy.max_replicas} replicas are the most"
        alarm = _verdict(current, "keep", reason, raw=raw, limit=f"bounds {policy.bounds}")
        return replace(alarm, is_alarm=True)
    if (until := _cooling_until(policy, members, past)) and now < until:
        reason = f"{said}; cooling down until {until:%H:%M:%S}"
        return _verdict(current, "keep", reason, raw=raw, limit="cool-down")
    return _verdict(raw, "up", said, raw=raw)


def _cooling_until(policy: Policy, members: Sequence[Member], past: Past) -> datetime | None:
    """Give when the last change has had time to show: from its decision, or its arrival."""
    changes = [m.ready_at for m in members if m.state is State.READY and m.ready_at]
    changes += [past.scaled_at] if past.scaled_at else []
    return max(changes) + timedelta(seconds=policy.cooldown_s) if changes else None


def _down(
    policy: Policy,
    counts: Counts,
    members: Sequence[Member],
    demand: Demand,
    past: Past,
    now: datetime,
) -> Verdict:
    """Take replicas away after a long calm; else keep what is there."""
    current = counts.current
    busy = _why_not_down(policy, counts, members, demand)
    if busy:
        return _verdict(current, "keep", busy)
    usage = utilisation(members)
    assert usage is not None  # noqa: S101 - else there was a reason not to go down
    target = _fewest(policy, counts, usage, demand)
    if target >= current:
        return _verdict(current, "keep", f"within targets: utilisation {usage * 100:.0f} %")
    since = past.below_since or now
    down_at = since + timedelta(seconds=policy.scale_down_after_s)
    low = f"{policy.utilisation_low * 100:.0f} %"
    said = f"utilisation {usage * 100:.0f} %, below {low} since {since:%H:%M:%S}"
    if now < down_at:
        reason = f"{said}: {target} would do, taken away from {down_at:%H:%M:%S} on"
        waiting = _verdict(current, "keep", reason, raw=target, limit="scale-down delay")
        return replace(waiting, below_since=since)
    reason = f"{said}: {target} {'is' if target == 1 else 'are'} enough"
    return _verdict(target, "down", reason, raw=target)


def _fewest(policy: Policy, counts: Counts, usage: float, demand: Demand) -> int:
    """Give how few replicas carry this load within the band, at most a step less than now."""
    if not demand.is_idle:
        needed = max(1, math.ceil(counts.ready * usage / policy.utilisation_high - 1e-9))
    else:
        needed = 0
    step = math.ceil(counts.current / policy.step_factor)
    least = 0 if needed == 0 and counts.current == 1 else max(step, 1)
    return max(policy.min_replicas, needed, least)


def _why_not_down(policy: Policy, counts: Counts, members: Sequence[Member], demand: Demand) -> str:
    """Say why nothing may be taken away, whatever the load; "" = something may."""
    if counts.current <= policy.min_replicas:
        return f"within targets, at the least ({policy.min_replicas})"
    if counts.starting:
        return f"{counts.starting} replicas are starting: nothing is taken away meanwhile"
    unknown = _unknown(members)
    if unknown:
        return f"no figures of {unknown[0].replica} ({unknown[0].missing}): never down on a gap"
    if demand.waiting is None:
        return "agents do not tell how many wait: never down on a gap"
    if demand.waiting:
        return f"{demand.waiting} requests wait in the agents' queues"
    in_engines = sum(m.figures.waiting for m in members if m.figures is not None)
    if in_engines:
        return f"{in_engines} requests wait in the engines' queues"
    wait_s = queue_wait_s(demand)
    if wait_s is not None and wait_s > CALM_RATIO * policy.queue_wait_limit_s:
        return f"within targets, but P95 queue wait is {wait_s * 1000:.0f} ms"
    usage = utilisation(members)
    if usage is None or usage >= policy.utilisation_low:  # None: no replica is ready
        return f"within targets: utilisation {(usage or 0.0) * 100:.0f} %"
    return ""


def utilisation(members: Sequence[Member]) -> float | None:
    """Give how full the ready replicas are: their batches or KV caches, whichever is fuller."""
    known = [u for u in (mean_kv_usage(members), batch_usage(members)) if u is not None]
    return max(known, default=None)


def signals_of(policy: Policy, members: Sequence[Member], demand: Demand) -> tuple[Signal, ...]:
    """Give each signal with its limit, its age, and how far it presses (1 = at its limit)."""
    ages = [m.figures.age_s for m in members if m.figures is not None]
    oldest_s = max(ages, default=None)
    return (
        Signal(
            name="queue wait P95",
            unit="s",
            value=queue_wait_s(demand),
            limit=policy.queue_wait_limit_s,
            age_s=demand.age_s,
            note=demand.note,
        ),
        Signal(
            name="KV usage",
            unit="ratio",
            value=mean_kv_usage(members),
            limit=policy.kv_usage_limit,
            age_s=oldest_s,
            note=_known_of(members),
        ),
        Signal(
            name="utilisation", unit="ratio", value=utilisation(members), age_s=oldest_s,
            note=f"band {policy.utilisation_low * 100:.0f} % to"
            f" {policy.utilisation_high * 100:.0f} %",
        ),
        Signal(
            name="queue length",
            unit="requests",
            value=queue_length(members, demand),
            limit=policy.queue_length_limit,
            age_s=demand.age_s,
            note="waiting in agents and engines, for each ready replica",
        ),
    )  # fmt: skip


def _known_of(members: Sequence[Member]) -> str:
    ready = [m for m in members if m.state is State.READY and not m.is_spare]
    known = [m.figures for m in ready if m.figures is not None]
    if known and all(f.kv_usage is None for f in known):
        return "engines of this make do not tell it: their batches go into the utilisation"
    return f"mean of {len(known)} of {len(ready)} ready replicas"


def _unknown(members: Sequence[Member]) -> list[Member]:
    return [m for m in members if m.state is State.READY and not m.is_spare and m.figures is None]


def _verdict(
    wanted: int, code: str, reason: str, *, raw: int | None = None, limit: str = ""
) -> Verdict:
    return Verdict(
        wanted=wanted, raw=wanted if raw is None else raw, code=code, reason=reason, limit=limit
    )
