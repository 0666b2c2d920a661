"""Filters of the version list."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from controlplane.catalog.models import ModelVersion
from controlplane.console.widgets import AnyYesNo


class VersionFilter(django_filters.FilterSet):
    """By words in model or version, by engine, and with or without the retired."""

    q = django_filters.CharFilter(label="Model or version", method="by_text")
    engine = django_filters.CharFilter(label="Engine", lookup_expr="iexact")
    retired = django_filters.BooleanFilter(
        label="Retired",
        field_name="retired_at",
        lookup_expr="isnull",
        exclude=True,
        widget=AnyYesNo,
    )

    class Meta:
        model = ModelVersion
        fields = ["q", "engine", "retired"]

    def by_text(self, found: QuerySet[ModelVersion], name: str, value: str) -> QuerySet:
        """Find versions whose own or model's name contains the text."""
        return found.filter(Q(name__icontains=value) | Q(model__name__icontains=value))
