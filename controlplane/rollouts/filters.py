"""Filters of the list of rollouts."""

from __future__ import annotations

import django_filters
from django.db.models import QuerySet

from controlplane.domain import rollouts
from controlplane.domain.shadow_pairs import OUTCOMES
from controlplane.rollouts.models import Rollout, ShadowPair


class RolloutFilter(django_filters.FilterSet):
    """Which rollouts."""

    phase = django_filters.ChoiceFilter(
        label="Phase", choices=[(p.value, p.value) for p in rollouts.Phase], empty_label="any"
    )
    running = django_filters.ChoiceFilter(
        label="State",
        choices=[("true", "running"), ("false", "over")],
        empty_label="any",
        method="by_running",
    )

    class Meta:
        model = Rollout
        fields = ["model", "phase", "stable_pool", "canary_pool"]

    def by_running(self, found: QuerySet[Rollout], name: str, value: str) -> QuerySet[Rollout]:
        """Find those that may still move weights, or those that may not."""
        running = {"phase__in": rollouts.RUNNING}
        return found.filter(**running) if value == "true" else found.exclude(**running)


class ShadowPairFilter(django_filters.FilterSet):
    """Which shadow pairs."""

    request_id = django_filters.CharFilter(label="Request id", lookup_expr="startswith")
    outcome = django_filters.ChoiceFilter(
        label="Outcome", choices=[(o, o) for o in OUTCOMES], empty_label="any"
    )
    review = django_filters.ChoiceFilter(
        label="Review", choices=ShadowPair.Review.choices, empty_label="any", null_label=None
    )
    pool = django_filters.CharFilter(label="Pool")
    shadow_pool = django_filters.CharFilter(label="Shadow pool")

    class Meta:
        model = ShadowPair
        fields = ["request_id", "outcome", "review", "pool", "shadow_pool"]
