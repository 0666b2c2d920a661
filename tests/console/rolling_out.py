"""A rollout that has been looked at, and a shadow pair, for pages to show."""

from __future__ import annotations

import time

from django.utils import timezone

from controlplane.catalog.models import ModelVersion
from controlplane.domain.analysis import analyse
from controlplane.domain.rollups import Figures
from controlplane.fleet.models import Pool
from controlplane.rollouts import services as rollouts
from controlplane.rollouts.selectors import Judged
from controlplane.rollouts.services.evaluation import keep
from routing_agent import wire
from tests.factories import WHY, make_replica


def roll_out(stable: Pool) -> tuple[int, str]:
    """Start a rollout that has been looked at, with a shadow pair; give its number and its uid."""
    version = ModelVersion.objects.create(model=stable.model_version.model, name="v2")
    canary = Pool.objects.create(slug="chat-v2", model_version=version, overload_policy="queue")
    make_replica(canary)
    row = rollouts.start_rollout(stable_pool=stable.slug, canary_pool=canary.slug, **WHY)
    measured = analyse(
        Figures(requests=300, ttft={50: 300}, tpot={30: 300}),
        Figures(requests=900, ttft={50: 900}, tpot={30: 900}, failed=2),
        limit=0.1,
        min_requests=200,
    )
    keep(row.steps.get(), Judged(analysis=measured, source="recent store"), timezone.now())
    answers = [
        wire.ShadowAnswer(version=v, status=200, text=text, text_length=len(text), ttft_s=0.1)
        for v, text in (("v1", "It is four."), ("v2", "It is five."))
    ]
    told = wire.ShadowPair(
        uid="pair-1",
        request_id="req-pair",
        at=time.time(),
        pool=stable.slug,
        shadow_pool=canary.slug,
        primary=answers[0],
        shadow=answers[1],
        first_difference=7,
        prompt="two and two?",
    )
    rollouts.book_pairs([told])
    return row.pk, "pair-1"
