"""Filters of the fleet's lists."""

from __future__ import annotations

import django_filters
from django.db.models import Q, QuerySet

from controlplane.catalog.models import Adapter
from controlplane.console.widgets import AnyYesNo
from controlplane.fleet.models import Node, Pool


class PoolFilter(django_filters.FilterSet):
    """By words in name, model or version, and by overload policy."""

    q = django_filters.CharFilter(label="Name, model or version", method="by_text")
    overload_policy = django_filters.ChoiceFilter(
        label="Overload policy", choices=Pool.Overload.choices, empty_label="any"
    )

    class Meta:
        model = Pool
        fields = ["q", "overload_policy"]

    def by_text(self, found: QuerySet[Pool], name: str, value: str) -> QuerySet[Pool]:
        """Find pools whose name, model or version contains the text."""
        return found.filter(
            Q(slug__icontains=value)
            | Q(model_version__name__icontains=value)
            | Q(model_version__model__name__icontains=value)
        )


class NodeFilter(django_filters.FilterSet):
    """By words in the name, and by zone."""

    q = django_filters.CharFilter(label="Name", field_name="name", lookup_expr="icontains")
    zone = django_filters.CharFilter(label="Zone", lookup_expr="icontains")

    class Meta:
        model = Node
        fields = ["q", "zone"]


class AdapterFilter(django_filters.FilterSet):
    """By words in name, tenant or base model, and by whether it is pinned."""

    q = django_filters.CharFilter(label="Adapter, tenant or model", method="by_text")
    pinned = django_filters.BooleanFilter(label="Pinned", widget=AnyYesNo)

    class Meta:
        model = Adapter
        fields = ["q", "pinned"]

    def by_text(self, found: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        """Find adapters whose name, tenant or base model contains the text."""
        return found.filter(
            Q(name__icontains=value)
            | Q(tenant__slug__icontains=value)
            | Q(model__name__icontains=value)
        )


class AreaAdapterFilter(AdapterFilter):
    """The same for a tenant, who sees no other tenants to search by."""

    q = django_filters.CharFilter(label="Adapter or base model", method="by_text")
