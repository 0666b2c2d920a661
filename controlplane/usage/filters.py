"""Filters of the list of requests."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from controlplane.usage.models import RequestRecord

# Choice: (label, lowest status, highest status).
OUTCOMES = {
    "failed": ("failed (5xx)", 500, 599),
    "left": ("client left (499)", 499, 499),
    "refused": ("refused (4xx)", 400, 498),
    "good": ("good", 100, 399),
}


class RequestFilter(django_filters.FilterSet):
    """By id or trace, outcome, pool, tenant, and time."""

    q = django_filters.CharFilter(label="Request or trace id", method="by_id")
    outcome = django_filters.ChoiceFilter(
        label="Outcome",
        choices=[(name, label) for name, (label, _, _) in OUTCOMES.items()],
        empty_label="any",
        method="by_outcome",
    )
    status = django_filters.NumberFilter(label="Status")
    pool = django_filters.CharFilter(label="Pool")
    tenant = django_filters.CharFilter(label="Tenant")
    since = django_filters.IsoDateTimeFilter(
        label="Since (UTC)", field_name="received_at", lookup_expr="gte"
    )

    class Meta:
        model = RequestRecord
        fields = ["q", "outcome", "status", "pool", "tenant", "since"]

    def by_id(
        self, found: QuerySet[RequestRecord], name: str, value: str
    ) -> QuerySet[RequestRecord]:
        """Find ids and trace ids that begin with the text."""
        value = value.strip()
        return found.filter(Q(request_id__startswith=value) | Q(trace_id__startswith=value.lower()))

    def by_outcome(
        self, found: QuerySet[RequestRecord], name: str, value: str
    ) -> QuerySet[RequestRecord]:
        """Find requests by how they ended."""
        _, lowest, highest = OUTCOMES[value]
        return found.filter(status__range=(lowest, highest))
