"""What pages show of scaling: what is wanted, what is there, what is on its way, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.domain.replica_states import State
from controlplane.fleet.models import Replica
from controlplane.scaling import selectors
from controlplane.scaling.models import Override, ScalingDecision, ScalingPolicy
from controlplane.scaling.selectors import ColdStartTime

_ON_THEIR_WAY = (State.PENDING, State.LOADING, State.WARMING)
LATE_AFTER_S = 30.0  # six rounds of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A replica that is on its way."""

    replica: Replica
    due_at: datetime | None  # by the starts measured so far


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One pool's scaling."""

    policy: ScalingPolicy
    decision: ScalingDecision | None
    override: Override | None
    ready: int
    coming: tuple[Coming, ...]
    draining: int
    failed: int
    spares: int
    lead_s: float | None
    is_late: bool = False

    @property
    def slug(self) -> str:
        """Give the pool's name."""
        return self.policy.pool.slug

    @property
    def status(self) -> str:
        """Give the chip's code."""
        if self.is_late:
            return "late"
        if self.decision is not None and self.decision.is_alarm:
            return "warning"
        if self.policy.executor != Replica.Executor.AGENT:
            return "off"
        if self.override is not None or not self.policy.enabled:
            return "paused"
        if self.coming or self.draining:
            return "progressing"
        return "ok"


def scaling_rows(policies: Sequence[ScalingPolicy], now: datetime) -> list[ScalingRow]:
    """Give pools with policies, those that need a look first."""
    rows = [scaling_row(p, now) for p in policies]
    order = {"late": 0, "warning": 1, "progressing": 2, "paused": 3, "ok": 4, "off": 5}
    return sorted(rows, key=lambda r: (order[r.status], r.slug))


def scaling_row(policy: ScalingPolicy, now: datetime) -> ScalingRow:
    """Give one pool's scaling: what is there, what comes, what was decided."""
    replicas = selectors.replicas_of(policy.pool)
    serving = [r for r in replicas if not r.is_spare]
    lead_s = selectors.lead_time_s(policy.pool)
    decision = selectors.decisions(pool=policy.pool.slug).first()

    def of(*states: State) -> list[Replica]:
        return [r for r in serving if r.state in states]

    return ScalingRow(
        policy=policy,
        decision=decision,
        override=selectors.override_of(policy.pool, now),
        ready=len(of(State.READY)),
        coming=tuple(_coming(r, lead_s) for r in of(*_ON_THEIR_WAY)),
        draining=len(of(State.DRAINING)),
        failed=len(of(State.FAILED, State.EJECTED)),
        spares=sum(r.is_spare and r.state == State.WARMING for r in replicas),
        lead_s=lead_s,
        is_late=decision is not None and now - decision.last_at > timedelta(seconds=LATE_AFTER_S),
    )


def _coming(replica: Replica, lead_s: float | None) -> Coming:
    due = None if lead_s is None else replica.state_since + timedelta(seconds=lead_s)
    return Coming(replica=replica, due_at=due)


def cold_starts_of(row: ScalingRow) -> list[ColdStartTime]:
    """Give how long starts of a pool's version took, by node."""
    return selectors.cold_starts(row.policy.pool)
