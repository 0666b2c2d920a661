"""Filters of the list of rollouts."""

from __future__ import annotations

import django_filters
from django.db.models import QuerySet

from controlplane.domain import rollouts
from controlplane.rollouts.models import Rollout


class RolloutFilter(django_filters.FilterSet):
    """Which rollouts."""

    running = django_filters.BooleanFilter(label="Running", method="by_running")

    class Meta:
        model = Rollout
        fields = ["model", "phase", "stable_pool", "canary_pool"]

    def by_running(self, found: QuerySet[Rollout], name: str, value: bool) -> QuerySet[Rollout]:
        """Find those that may still move weights, or those that may not."""
        running = {"phase__in": rollouts.RUNNING}
        return found.filter(**running) if value else found.exclude(**running)
