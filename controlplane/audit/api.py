"""REST: audit events."""

from __future__ import annotations

import django_filters
from rest_framework import mixins, serializers, viewsets

from controlplane.audit import selectors
from controlplane.audit.models import AuditEvent


class AuditEventSerializer(serializers.ModelSerializer):
    """One change: who, what, on what, why, before and after."""

    class Meta:
        model = AuditEvent
        fields = [
            "id",
            "at",
            "actor",
            "actor_kind",
            "verb",
            "target_kind",
            "target",
            "reason",
            "before",
            "after",
            "fleet_revision",
        ]
        read_only_fields = fields


class AuditEventFilter(django_filters.FilterSet):
    """Which events."""

    since = django_filters.IsoDateTimeFilter("at", "gte")
    until = django_filters.IsoDateTimeFilter("at", "lt")
    search = django_filters.CharFilter("reason", "icontains")

    class Meta:
        model = AuditEvent
        fields = ["actor", "actor_kind", "verb", "target_kind", "target", "fleet_revision"]


class AuditEventViewSet(
    mixins.RetrieveModelMixin, mixins.ListModelMixin, viewsets.GenericViewSet[AuditEvent]
):
    """Every change, newest first."""

    queryset = selectors.events()
    serializer_class = AuditEventSerializer
    filterset_class = AuditEventFilter
