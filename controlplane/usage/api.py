"""REST: the lives of requests that were kept."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import mixins, serializers, viewsets

from controlplane.rest.serializers import ReadOnlySerializer
from controlplane.usage import selectors
from controlplane.usage.models import RequestRecord


class RequestSerializer(ReadOnlySerializer):
    """One request that was kept."""

    class Meta:
        model = RequestRecord
        fields = [
            "request_id",
            "uid",
            "trace_id",
            "received_at",
            "node",
            "tenant",
            "api_key",
            "model",
            "version",
            "pool",
            "replica",
            "adapter",
            "path",
            "status",
            "error",
            "kept",
            "attempts",
            "prompt_tokens",
            "cached_prompt_tokens",
            "output_tokens",
            "estimated",
            "queue_wait_s",
            "ttft_s",
            "e2e_s",
        ]


class RequestDetailSerializer(RequestSerializer):
    """One request with its life: decision, candidates, stages, attempts."""

    life = serializers.SerializerMethodField()

    class Meta(RequestSerializer.Meta):
        fields = [*RequestSerializer.Meta.fields, "life"]

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_life(self, row: RequestRecord) -> Any:
        """Give what its agent told; fields at their defaults are left out."""
        return row.life


class RequestApiFilter(django_filters.FilterSet):
    """Which requests."""

    since = django_filters.IsoDateTimeFilter("received_at", "gte")
    until = django_filters.IsoDateTimeFilter("received_at", "lt")

    class Meta:
        model = RequestRecord
        fields = ["request_id", "trace_id", "status", "failed", "kept", "pool", "tenant", "model"]


class RequestViewSet(
    mixins.RetrieveModelMixin, mixins.ListModelMixin, viewsets.GenericViewSet[RequestRecord]
):
    """Requests that were kept, failed ones first: every failure, and a share of the rest."""

    queryset = RequestRecord.objects.none()
    lookup_field = "request_id"
    lookup_value_regex = r".+?"  # a client's own id may have slashes
    serializer_class = RequestSerializer
    filterset_class = RequestApiFilter

    def get_queryset(self) -> QuerySet[RequestRecord]:
        """Give all requests."""
        return selectors.requests()

    def get_object(self) -> RequestRecord:
        """Give the newest request of this id; 404 says what is kept."""
        return selectors.newest_named(self.kwargs["request_id"])

    def get_serializer_class(self) -> type[serializers.Serializer]:
        """Show the life only where one request is looked at."""
        return RequestDetailSerializer if self.action == "retrieve" else RequestSerializer
