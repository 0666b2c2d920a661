"""REST: booked usage by hour, tenant, key, model and version."""

from __future__ import annotations

from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet, Sum
from rest_framework import mixins, serializers

from controlplane.rest.views import ServiceViewSet
from controlplane.tenants.models import TenantRole
from controlplane.usage.hours import SUMMED
from controlplane.usage.models import UsageHour


class UsageSerializer(serializers.Serializer[Any]):
    """One hour of one tenant's key on one model version, over all agents together."""

    hour = serializers.DateTimeField()
    tenant = serializers.CharField()
    api_key = serializers.CharField()
    model = serializers.CharField()
    version = serializers.CharField()
    requests = serializers.IntegerField(source="requests_sum")
    failed = serializers.IntegerField(source="failed_sum")
    estimated = serializers.IntegerField(
        source="estimated_sum", help_text="Requests whose tokens were counted, not told."
    )
    prompt_tokens = serializers.IntegerField(source="prompt_tokens_sum")
    cached_prompt_tokens = serializers.IntegerField(source="cached_prompt_tokens_sum")
    output_tokens = serializers.IntegerField(source="output_tokens_sum")


class UsageFilter(django_filters.FilterSet):
    """Which hours, of whom."""

    since = django_filters.IsoDateTimeFilter("hour", "gte")
    until = django_filters.IsoDateTimeFilter("hour", "lt")

    class Meta:
        model = UsageHour
        fields = ["tenant", "api_key", "model", "version"]


class UsageViewSet(mixins.ListModelMixin, ServiceViewSet):
    """What was used, newest hours first; each request counted once, failed and aborted ones too."""

    tenant_roles: ClassVar[dict[str, str]] = {"list": TenantRole.MEMBER.value}
    queryset = UsageHour.objects.none()
    serializer_class = UsageSerializer
    filterset_class = UsageFilter

    def get_queryset(self) -> QuerySet[Any]:
        """Give all hours, or those of the caller's tenants, each added up over the agents."""
        rows = self.own(UsageHour.objects.all(), "tenant")
        columns = ("hour", "tenant", "api_key", "model", "version")
        sums = {f"{name}_sum": Sum(name) for name in SUMMED}
        return rows.order_by().values(*columns).annotate(**sums).order_by("-hour", *columns[1:])
