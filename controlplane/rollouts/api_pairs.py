"""REST: shadow pairs, two versions' answers to one request."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.shadow_pairs import OUTCOMES
from controlplane.rest.serializers import ChangeInput, ReadOnlySerializer, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.rollouts import selectors, services
from controlplane.rollouts.filters import ShadowPairFilter
from controlplane.rollouts.models import ShadowPair


class ShadowAnswerSerializer(serializers.Serializer):
    """One side of a pair; texts are empty where none are kept."""

    version = serializers.CharField()
    replica = serializers.CharField()
    status = serializers.IntegerField(help_text="0: no answer.")
    error = serializers.CharField(help_text="Why there is no whole answer.")
    text = serializers.CharField(help_text="Its beginning, at most 4,000 characters.")
    text_length = serializers.IntegerField()
    is_cut = serializers.BooleanField(help_text="There was more text than was read.")
    prompt_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    ttft_s = serializers.FloatField(allow_null=True)
    duration_s = serializers.FloatField(allow_null=True)


class ShadowPairSerializer(ReadOnlySerializer):
    """Two answers to one request, and what a person made of the shadow's."""

    outcome = serializers.ChoiceField(choices=OUTCOMES)
    primary = serializers.SerializerMethodField()
    shadow = serializers.SerializerMethodField()

    class Meta:
        model = ShadowPair
        fields = [
            "uid",
            "request_id",
            "at",
            "tenant",
            "model",
            "pool",
            "shadow_pool",
            "primary_version",
            "shadow_version",
            "path",
            "stream",
            "outcome",
            "first_difference",
            "primary",
            "shadow",
            "prompt",
            "review",
            "reviewed_by",
            "reviewed_at",
            "note",
        ]

    @extend_schema_field(ShadowAnswerSerializer)
    def get_primary(self, row: ShadowPair) -> Any:
        """Give the answer that the client got."""
        return row.primary

    @extend_schema_field(ShadowAnswerSerializer)
    def get_shadow(self, row: ShadowPair) -> Any:
        """Give the answer that nobody got."""
        return row.shadow


class ReviewInput(ChangeInput):
    """What a person makes of the shadow's answer."""

    review = serializers.ChoiceField(
        choices=ShadowPair.Review.choices, allow_blank=True, help_text="Empty takes it back."
    )


class ShadowPairViewSet(ReadMixin, ServiceViewSet):
    """Shadow pairs, the newest first; kept for SIGNALBOX_SHADOW_RETENTION_DAYS."""

    queryset = ShadowPair.objects.none()
    lookup_field = "uid"
    serializer_class = ShadowPairSerializer
    filterset_class = ShadowPairFilter

    def get_queryset(self) -> QuerySet[ShadowPair]:
        """Give all pairs."""
        return selectors.pairs()

    @extend_schema(request=ReviewInput, responses=changed(ShadowPairSerializer))
    @action(detail=True, methods=["post"])
    def review(self, request: Request, uid: str) -> Response:
        """Keep what a person makes of the shadow's answer."""
        return self.carry_out(partial(services.review_pair, uid=uid, **self.read(ReviewInput)))
