"""Forgetting: decisions of long ago, and replicas that scaling stopped and nobody needs."""

from __future__ import annotations

from datetime import datetime

from controlplane.domain.replica_states import State
from controlplane.fleet.models import Replica
from controlplane.scaling.models import ScalingDecision


def forget_before(moment: datetime) -> int:
    """Delete decisions and stopped replicas of agents that are older, and say how many."""
    decisions, _ = ScalingDecision.objects.filter(last_at__lt=moment).delete()
    old = Replica.objects.filter(
        executor=Replica.Executor.AGENT, state=State.STOPPED, state_since__lt=moment
    )
    forgotten = old.count()
    old.delete()
    return decisions + forgotten
