"""The demo's pool that grows: its engines are started by the agents, on their simulated GPUs."""

from __future__ import annotations

from controlplane.fleet.models import Pool
from controlplane.routing.demo import ensure_model
from controlplane.routing.first_start import ACTOR
from controlplane.scaling.models import ScalingPolicy
from controlplane.scaling.services import set_policy

MODEL = "mistral-7b-instruct"
REASON = "demo fleet"


def ensure_growing_pool() -> None:
    """Make model, pool and policy where they are missing; what an operator changed stays."""
    ensure_model(MODEL)
    pool = Pool.objects.filter(model_version__model__name=MODEL).first()
    if pool is None or ScalingPolicy.objects.filter(pool=pool).exists():
        return
    set_policy(
        pool=pool.slug,
        actor=ACTOR,
        reason=REASON,
        min_replicas=1,
        max_replicas=4,
        scale_down_after_s=60.0,  # the default is five minutes: long for a demonstration
        program="simulated",
        # A small batch, so that a laptop's load fills it.
        engine_arguments={"--max-num-seqs": 8, "--kv-blocks": 1500},
    )
