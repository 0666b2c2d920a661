"""Filters of the tenant list."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from controlplane.console.widgets import AnyYesNo
from controlplane.tenants.models import Tenant


class TenantFilter(django_filters.FilterSet):
    """By words in slug or name, and by whether it is suspended."""

    q = django_filters.CharFilter(label="Name", method="by_text")
    suspended = django_filters.BooleanFilter(label="Suspended", widget=AnyYesNo)

    class Meta:
        model = Tenant
        fields = ["q", "suspended"]

    def by_text(self, found: QuerySet[Tenant], name: str, value: str) -> QuerySet[Tenant]:
        """Find tenants whose slug or name contains the text."""
        return found.filter(Q(slug__icontains=value) | Q(name__icontains=value))
