"""REST: rollouts, and what people do with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.analysis import Verdict
from controlplane.domain.rollouts import Phase
from controlplane.rest.serializers import ChangeInput, ReadOnlySerializer, VersionedInput, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.rollouts import selectors, services
from controlplane.rollouts.filters import RolloutFilter
from controlplane.rollouts.models import AnalysisRun, Rollout, RolloutStep


class MetricSerializer(serializers.Serializer):
    """One metric of the canary against stable; latencies in seconds, errors as a share."""

    name = serializers.CharField()
    verdict = serializers.ChoiceField(choices=[v.value for v in Verdict])
    reason = serializers.CharField()
    canary = serializers.FloatField(allow_null=True)
    stable = serializers.FloatField(allow_null=True)
    canary_at_least = serializers.FloatField(allow_null=True)
    stable_at_most = serializers.FloatField(allow_null=True)
    canary_samples = serializers.IntegerField()
    stable_samples = serializers.IntegerField()


class AnalysisSerializer(ReadOnlySerializer):
    """Looks at one step that came to the same verdict; the figures are those of the newest."""

    metrics = MetricSerializer(many=True)

    class Meta:
        model = AnalysisRun
        fields = [
            "verdict",
            "reason",
            "has_data",
            "first_at",
            "at",
            "looks",
            "source",
            "canary_requests",
            "stable_requests",
            "metrics",
        ]


class StepSerializer(ReadOnlySerializer):
    """One stage of a rollout."""

    class Meta:
        model = RolloutStep
        fields = [
            "index",
            "percent",
            "began_at",
            "observed_at",
            "ended_at",
            "outcome",
            "reason",
        ]


class RolloutSerializer(ReadOnlySerializer):
    """A move of a model's sessions from one pool to another."""

    phase = serializers.ChoiceField(choices=[p.value for p in Phase])
    percent = serializers.FloatField(help_text="The canary's part of stable's share, now.")
    steps = StepSerializer(many=True)
    analysis = serializers.SerializerMethodField()

    class Meta:
        model = Rollout
        fields = [
            "id",
            "model",
            "stable_pool",
            "stable_version",
            "canary_pool",
            "canary_version",
            "phase",
            "reason",
            "percent",
            "percents",
            "current",
            "share",
            "bake_s",
            "baked_s",
            "min_requests",
            "regression_limit",
            "steps",
            "analysis",
            "started_at",
            "started_by",
            "evaluated_at",
            "finished_at",
            "version",
        ]

    @extend_schema_field(AnalysisSerializer(allow_null=True))
    def get_analysis(self, row: Rollout) -> Any:
        """Give the newest verdict on the step it is at."""
        step = next((s for s in row.steps.all() if s.index == row.current), None)
        found = next(iter(step.analyses.all()), None) if step else None
        return AnalysisSerializer(found).data if found else None


class RolloutInput(ChangeInput):
    """A new rollout; both pools serve the same model, the canary has no share yet."""

    stable_pool = serializers.CharField(max_length=63)
    canary_pool = serializers.CharField(max_length=63)
    percents = serializers.ListField(
        child=serializers.FloatField(),
        required=False,
        help_text="Of stable's share, one a step; the last is 100. By default 1, 5, 25, 100.",
    )
    bake_s = serializers.FloatField(required=False, help_text="By default 600.")
    min_requests = serializers.IntegerField(required=False, help_text="By default 200.")
    regression_limit = serializers.FloatField(required=False, help_text="By default 0.1: 10 %.")
    override_budget = serializers.BooleanField(
        required=False, help_text="Although an error budget is spent; audited with the reason."
    )


class PromoteInput(VersionedInput):
    """Going on without waiting."""

    override_budget = serializers.BooleanField(
        required=False, help_text="Although an error budget is spent; audited with the reason."
    )


class RolloutViewSet(ReadMixin, ServiceViewSet):
    """Rollouts: traffic moved between two versions of a model, step by step, judged by figures."""

    queryset = Rollout.objects.none()
    serializer_class = RolloutSerializer
    filterset_class = RolloutFilter
    lookup_value_regex = r"\d{1,18}"

    def get_queryset(self) -> QuerySet[Rollout]:
        """Give all rollouts with their steps and verdicts."""
        return selectors.all_rollouts().prefetch_related("steps__analyses")

    @extend_schema(request=RolloutInput, responses={201: changed(RolloutSerializer)})
    def create(self, request: Request) -> Response:
        """Start a rollout with its first step; 409 says why it cannot start."""
        return self.carry_out(
            partial(services.start_rollout, **self.read(RolloutInput)), status=201
        )

    @extend_schema(request=VersionedInput, responses=changed(RolloutSerializer))
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: str) -> Response:
        """Hold a rollout where it is; a failing analysis still takes it back."""
        return self._act(services.pause_rollout, pk)

    @extend_schema(request=VersionedInput, responses=changed(RolloutSerializer))
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: str) -> Response:
        """Let a paused rollout go on by itself."""
        return self._act(services.resume_rollout, pk)

    @extend_schema(request=PromoteInput, responses=changed(RolloutSerializer))
    @action(detail=True, methods=["post"])
    def promote(self, request: Request, pk: str) -> Response:
        """Go on to the next step without waiting; from the last step: finish."""
        return self._act(services.promote_rollout, pk, PromoteInput)

    @extend_schema(request=VersionedInput, responses=changed(RolloutSerializer))
    @action(detail=True, methods=["post"])
    def abort(self, request: Request, pk: str) -> Response:
        """Give everything back to stable at once."""
        return self._act(services.abort_rollout, pk)

    @extend_schema(request=VersionedInput, responses=changed(RolloutSerializer))
    @action(detail=True, methods=["post"], url_path="roll-back")
    def roll_back(self, request: Request, pk: str) -> Response:
        """Start a rollout of the version before a finished one."""
        return self._act(services.roll_back, pk)

    def _act(
        self,
        service: Callable[..., Rollout],
        pk: str,
        kind: type[VersionedInput] = VersionedInput,
    ) -> Response:
        given = self.read(kind)
        return self.carry_out(
            partial(service, number=int(pk), expected_version=self.expected_version, **given)
        )
