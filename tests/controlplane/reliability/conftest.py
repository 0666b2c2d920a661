"""Minutes of pools, as the roll-up leaves them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry.models import RollUp, Step

MinuteOf = Callable[..., datetime]


@pytest.fixture
def minute(db: None) -> MinuteOf:
    """Give a function that stores one minute of a pool, and gives its beginning."""

    def store(
        pool: str = "chat",
        *,
        at: datetime | None = None,
        step: Step = Step.MINUTE,
        version: str = "v1",
        **given: Any,
    ) -> datetime:
        begin = (at or timezone.now() - timedelta(minutes=3)).replace(second=0, microsecond=0)
        statuses = given.pop("statuses", {"200": 100})
        figures = Figures(
            **(
                {
                    "covered_s": int(step),
                    "requests": sum(statuses.values()),
                    "failed": sum(n for s, n in statuses.items() if s.startswith("5")),
                    "statuses": statuses,
                }
                | given
            )
        )
        RollUp.objects.update_or_create(
            level="pool",
            subject=pool,
            version=version,
            step_s=step,
            at=begin,
            defaults={
                "covered_s": figures.covered_s,
                "requests": figures.requests,
                "failed": figures.failed,
                "figures": rollups.packed(figures),
            },
        )
        return begin

    return store
