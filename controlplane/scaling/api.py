"""REST: scaling policies with overrides, and what was decided."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.fleet.models import Replica
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.scaling import selectors, services
from controlplane.scaling.models import ScalingDecision, ScalingPolicy
from controlplane.scaling.services.policies import FIELDS
from routing_agent import wire

PROGRAMS = get_args(wire.ProgramName)
EXECUTORS = Replica.Executor.values


class OverrideSerializer(serializers.Serializer):
    """A number of replicas that a person wants until a moment."""

    count = serializers.IntegerField()
    reason = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class ScalingDecisionSerializer(ReadOnlySerializer):
    """What was decided for a pool, from what, and what came of it."""

    pool = serializers.CharField(source="pool.slug")
    inputs = serializers.JSONField(help_text="Signals with limit and age, replicas by state.")

    class Meta:
        model = ScalingDecision
        fields = [
            "id",
            "pool",
            "at",
            "last_at",
            "times",
            "code",
            "before",
            "raw",
            "wanted",
            "limit",
            "reason",
            "outcome",
            "is_alarm",
            "inputs",
        ]


class ColdStartSerializer(serializers.Serializer):
    """How long starts of the pool's version took on one node."""

    node = serializers.CharField()
    program = serializers.CharField()
    count = serializers.IntegerField()
    median_s = serializers.FloatField()
    longest_s = serializers.FloatField()
    at = serializers.DateTimeField(help_text="Of the newest.")


class ScalingPolicySerializer(ReadOnlySerializer):
    """How one pool scales."""

    pool = serializers.CharField(source="pool.slug")
    override = serializers.SerializerMethodField()
    newest_decision = serializers.SerializerMethodField()
    cold_starts = serializers.SerializerMethodField()
    engine_arguments = serializers.DictField()

    class Meta:
        model = ScalingPolicy
        fields = [
            "pool",
            *FIELDS,
            "scaled_at",
            "below_since",
            "override",
            "newest_decision",
            "cold_starts",
            "updated_at",
            "version",
        ]

    @extend_schema(responses=OverrideSerializer)
    def get_override(self, row: ScalingPolicy) -> dict[str, Any] | None:
        """Give the override that holds now."""
        found = selectors.override_of(row.pool, timezone.now())
        return None if found is None else dict(OverrideSerializer(found).data)

    def get_newest_decision(self, row: ScalingPolicy) -> dict[str, Any] | None:
        """Give what was decided last."""
        found = selectors.decisions(pool=row.pool.slug).first()
        return None if found is None else dict(ScalingDecisionSerializer(found).data)

    def get_cold_starts(self, row: ScalingPolicy) -> list[dict[str, Any]]:
        """Give how long starts took, by node."""
        return list(ColdStartSerializer(selectors.cold_starts(row.pool), many=True).data)


class ScalingPolicyChange(VersionedInput):
    """What may be said of how a pool scales; what is left out stays, or is the default."""

    enabled = serializers.BooleanField(required=False)
    executor = serializers.ChoiceField(choices=EXECUTORS, required=False)
    min_replicas = serializers.IntegerField(min_value=0, required=False)
    max_replicas = serializers.IntegerField(min_value=1, max_value=1000, required=False)
    queue_wait_limit_s = serializers.FloatField(min_value=0.001, required=False)
    kv_usage_limit = serializers.FloatField(min_value=0.01, max_value=1, required=False)
    queue_length_limit = serializers.FloatField(min_value=0.1, required=False)
    utilisation_low = serializers.FloatField(min_value=0.01, max_value=1, required=False)
    utilisation_high = serializers.FloatField(min_value=0.01, max_value=1, required=False)
    cooldown_s = serializers.FloatField(min_value=0, required=False)
    tolerance_ratio = serializers.FloatField(min_value=0, max_value=1, required=False)
    step_factor = serializers.FloatField(min_value=1.01, max_value=10, required=False)
    max_step = serializers.IntegerField(min_value=1, required=False, allow_null=True)
    scale_down_after_s = serializers.FloatField(min_value=0, required=False)
    warm_spares = serializers.IntegerField(min_value=0, max_value=100, required=False)
    drain_s = serializers.FloatField(min_value=0.1, max_value=1800, required=False)
    start_wait_s = serializers.FloatField(min_value=0, max_value=1800, required=False)
    loading_limit_s = serializers.FloatField(min_value=1, required=False)
    program = serializers.ChoiceField(choices=PROGRAMS, required=False, allow_blank=True)
    model_source = serializers.CharField(max_length=300, required=False, allow_blank=True)
    gpus_per_replica = serializers.IntegerField(min_value=0, max_value=64, required=False)
    memory_ratio = serializers.FloatField(min_value=0.01, max_value=1, required=False)
    engine_arguments = serializers.DictField(required=False)


class ScalingPolicyInput(ScalingPolicyChange):
    """A policy for a pool that has none."""

    pool = serializers.CharField(max_length=63)
    version = None  # type: ignore[assignment]


class OverrideInput(ChangeInput):
    """How many replicas are wanted, and until when."""

    count = serializers.IntegerField(min_value=0)
    expires_at = serializers.DateTimeField()


class ScalingPolicyFilter(django_filters.FilterSet):
    """Which policies."""

    pool = django_filters.CharFilter("pool__slug")

    class Meta:
        model = ScalingPolicy
        fields = ["enabled", "executor"]


class ScalingPolicyViewSet(ReadMixin, ServiceViewSet):
    """How pools scale, by pool: set, change, override for a while."""

    lookup_field = "pool__slug"
    lookup_url_kwarg = "pool"
    queryset = ScalingPolicy.objects.none()
    serializer_class = ScalingPolicySerializer
    filterset_class = ScalingPolicyFilter

    def get_queryset(self) -> QuerySet[ScalingPolicy]:
        """Give all policies."""
        return selectors.policies()

    @extend_schema(request=ScalingPolicyInput, responses={201: changed(ScalingPolicySerializer)})
    def create(self, request: Request) -> Response:
        """Let a pool scale."""
        given = self.read(ScalingPolicyInput)
        service = partial(services.set_policy, expected_version=0, **given)
        return self.carry_out(service, status=201)

    @extend_schema(request=ScalingPolicyChange, responses=changed(ScalingPolicySerializer))
    def partial_update(self, request: Request, pool: str) -> Response:
        """Change how a pool scales."""
        selectors.policy(pool)
        given = self.read(ScalingPolicyChange, partial=True)
        version = self.expected_version
        return self.carry_out(
            partial(services.set_policy, pool=pool, expected_version=version, **given)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, pool: str) -> Response:
        """Stop scaling a pool; its replicas stay as they are."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_policy, pool=pool, expected_version=version), status=204
        )

    @extend_schema(request=OverrideInput, responses=changed(ScalingPolicySerializer))
    @action(detail=True, methods=["post"])
    def override(self, request: Request, pool: str) -> Response:
        """Want a number of replicas until a moment, whatever the signals say."""
        given = self.read(OverrideInput)
        return self._act(partial(services.set_override, pool=pool, **given), pool)

    @extend_schema(request=ChangeInput, responses=changed(ScalingPolicySerializer))
    @action(detail=True, methods=["post"], url_path="end-override")
    def end_override(self, request: Request, pool: str) -> Response:
        """Let the signals decide again."""
        self.read(ChangeInput)
        return self._act(partial(services.end_override, pool=pool), pool)

    def _act(self, service: Any, pool: str) -> Response:
        return self.carry_out(service, show=lambda _: self.show(selectors.policy(pool)))


class ScalingDecisionFilter(django_filters.FilterSet):
    """Which decisions."""

    pool = django_filters.CharFilter("pool__slug")

    class Meta:
        model = ScalingDecision
        fields = ["code", "is_alarm"]


class ScalingDecisionViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet
):
    """What was decided, newest first."""

    required_role = "viewer"
    queryset = ScalingDecision.objects.none()
    serializer_class = ScalingDecisionSerializer
    filterset_class = ScalingDecisionFilter

    def get_queryset(self) -> QuerySet[ScalingDecision]:
        """Give all decisions."""
        return selectors.decisions()
