"""Filters of the audit log."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from controlplane.audit.models import AuditEvent


class AuditFilter(django_filters.FilterSet):
    """By words in target or reason, by actor, verb, and time."""

    q = django_filters.CharFilter(label="Target or reason", method="by_text")
    actor = django_filters.CharFilter(label="Actor", lookup_expr="icontains")
    verb = django_filters.CharFilter(label="Verb", lookup_expr="istartswith")
    since = django_filters.IsoDateTimeFilter(
        label="Since (UTC)", field_name="at", lookup_expr="gte"
    )
    target_kind = django_filters.CharFilter(label="Kind")

    class Meta:
        model = AuditEvent
        fields = ["q", "actor", "verb", "target_kind", "since"]

    def by_text(self, found: QuerySet[AuditEvent], name: str, value: str) -> QuerySet[AuditEvent]:
        """Find events whose target or reason contains the text."""
        return found.filter(Q(target__icontains=value) | Q(reason__icontains=value))
