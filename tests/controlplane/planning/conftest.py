"""Pools with a history for the planner to read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.fleet.models import Pool
from controlplane.telemetry.models import RollUp, Step
from tests.factories import make_agent, make_pool, make_replica

QWEN = {"parameters": 7_615_616_512, "layers": 28, "kv_heads": 4, "head_dim": 128,
        "context_tokens": 32_768}  # fmt: skip


@pytest.fixture
def pool(db: None) -> Pool:
    """A pool of a known model on one node with two GPUs."""
    made = make_pool("chat")
    type(made.model_version).objects.filter(pk=made.model_version.pk).update(**QWEN)
    agent = make_agent("node-1")
    agent.node.gpus = [{"index": i, "model": "H100", "memory_bytes": 80 * 10**9} for i in (0, 1)]
    agent.node.save()
    for index in (0, 1):
        make_replica(made, node=agent.node, gpu_indices=[index])
    return made


@pytest.fixture
def roll_up(db: None) -> Callable[..., datetime]:
    """Give a function that stores one roll-up of pool `chat`, and gives its beginning."""

    def store(peak: float, *, ago: timedelta, step: Step = Step.HOUR, **given: Any) -> datetime:
        at = timezone.now().replace(minute=0, second=0, microsecond=0) - ago
        version = given.pop("version", "v1")
        figures = Figures(covered_s=int(step), peak_rate=peak, **given)
        RollUp.objects.create(
            level="pool",
            subject="chat",
            version=version,
            step_s=step,
            at=at,
            covered_s=int(step),
            requests=figures.requests,
            figures=rollups.packed(figures),
        )
        return at

    return store
