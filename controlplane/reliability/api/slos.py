"""REST: what pools promise, what is left of their error budgets, and maintenance windows."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.fleet.models import Pool
from controlplane.reliability import selectors, services
from controlplane.reliability.models import MaintenanceWindow
from controlplane.reliability.selectors import Promise
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet


class BudgetSerializer(serializers.Serializer[Any]):
    """The error budget of this calendar month (UTC)."""

    state = serializers.CharField(help_text="ok, warning (over half), exhausted, no-data.")
    total_minutes = serializers.FloatField()
    spent_minutes = serializers.FloatField()
    left_minutes = serializers.FloatField(help_text="Below 0: more than all is spent.")
    spent_ratio = serializers.FloatField()
    covered_s = serializers.FloatField(help_text="Seconds of the month that were reported.")
    excluded_s = serializers.FloatField(help_text="Seconds within maintenance windows.")
    reason = serializers.CharField()


class StandingSerializer(serializers.Serializer[Any]):
    """How one promise is kept this month."""

    name = serializers.CharField()
    title = serializers.CharField()
    promised = serializers.FloatField()
    achieved = serializers.FloatField(
        allow_null=True,
        help_text="Of times: the share of requests within the limit. Null: nothing is known.",
    )
    is_kept = serializers.BooleanField(allow_null=True)
    reason = serializers.CharField()


class SloSerializer(serializers.Serializer[Any]):
    """What one pool promises, and how it stands with that."""

    pool = serializers.CharField()
    availability_ratio = serializers.FloatField()
    ttft_p99_s = serializers.FloatField()
    tpot_p99_s = serializers.FloatField()
    error_ratio = serializers.FloatField()
    is_default = serializers.BooleanField()
    owner = serializers.CharField(allow_blank=True)
    review_on = serializers.DateField(allow_null=True)
    budget = BudgetSerializer()
    standings = StandingSerializer(many=True)
    burn_rates = serializers.DictField(
        child=serializers.FloatField(allow_null=True),
        help_text="By window: how many times faster than allowed the budget goes. Null: no data.",
    )
    frozen = serializers.CharField(
        allow_null=True, help_text="Why risky changes are refused; null: they are not."
    )
    booked_until = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="0: never changed.")

    def to_representation(self, instance: Pool) -> dict[str, Any]:
        """Give a pool's promises; all pools of a list are read at once."""
        return dict(super().to_representation(plain(self._promise(instance))))

    def _promise(self, pool: Pool) -> Promise:
        context: Any = self.context
        known: dict[str, Promise] = context.setdefault("promises", {})
        if pool.slug not in known:
            listed: Any = self.parent.instance if self.parent is not None else None
            shown = listed or [pool]
            known.update({p.pool: p for p in selectors.promises([row.slug for row in shown])})
        return known[pool.slug]


def plain(promise: Promise) -> dict[str, Any]:
    """Give a promise as it is shown."""
    return {
        **dataclasses.asdict(promise.objectives),
        **{name: getattr(promise, name) for name in ("pool", "is_default", "owner", "review_on")},
        **{name: getattr(promise, name) for name in ("budget", "standings", "burn_rates")},
        "frozen": selectors.frozen(promise),
        "booked_until": promise.booked_until,
        "version": promise.version,
    }


class SloChange(VersionedInput):
    """What may be changed of a pool's promises; version 0 is that of the defaults."""

    availability_ratio = serializers.FloatField(required=False)
    ttft_p99_s = serializers.FloatField(required=False)
    tpot_p99_s = serializers.FloatField(required=False)
    error_ratio = serializers.FloatField(required=False)
    owner = serializers.CharField(max_length=120, required=False, allow_blank=True)
    review_on = serializers.DateField(required=False, allow_null=True)
    version = serializers.IntegerField(min_value=0, required=False)


class SloViewSet(ReadMixin, ServiceViewSet):
    """SLOs: one for each pool, the defaults until it is changed."""

    lookup_field = "slug"
    lookup_url_kwarg = "pool"
    queryset = Pool.objects.none()
    serializer_class = SloSerializer

    def get_queryset(self) -> QuerySet[Pool]:
        """Give all pools."""
        return Pool.objects.all()

    @extend_schema(request=SloChange, responses=changed(SloSerializer))
    def partial_update(self, request: Request, pool: str) -> Response:
        """Change what a pool promises; alerts and budgets go by it from now on."""
        changes = self.read(SloChange, partial=True)
        change = partial(
            services.set_slo, pool=pool, expected_version=self.expected_version, **changes
        )
        return self.carry_out(change, show=lambda made: self._shown(pool))

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, pool: str) -> Response:
        """Go back to the default promises."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.reset_slo, pool=pool, expected_version=version), status=204
        )

    def _shown(self, pool: str) -> dict[str, Any]:
        return dict(SloSerializer(Pool.objects.get(slug=pool)).data)


class MaintenanceWindowSerializer(ReadOnlySerializer):
    """Time that does not count against promises."""

    pool = serializers.CharField(source="pool.slug", default=None, allow_null=True)

    class Meta:
        model = MaintenanceWindow
        fields = [
            "id",
            "pool",
            "kind",
            "starts_at",
            "ends_at",
            "reason",
            "created_by",
            "created_at",
        ]


class MaintenanceWindowInput(ChangeInput):
    """A new window; it may have begun up to 47 hours ago."""

    pool = serializers.CharField(
        max_length=63, required=False, allow_null=True, help_text="Null or left out: all pools."
    )
    kind = serializers.ChoiceField(MaintenanceWindow.Kind.choices, required=False)
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()


class MaintenanceWindowFilter(django_filters.FilterSet):
    """Which windows."""

    pool = django_filters.CharFilter("pool__slug")

    class Meta:
        model = MaintenanceWindow
        fields = ["kind"]


class MaintenanceWindowViewSet(ReadMixin, ServiceViewSet):
    """Maintenance windows: declared, and closed early."""

    lookup_value_regex = r"\d{1,18}"
    queryset = MaintenanceWindow.objects.none()
    serializer_class = MaintenanceWindowSerializer
    filterset_class = MaintenanceWindowFilter

    def get_queryset(self) -> QuerySet[MaintenanceWindow]:
        """Give all windows, newest first."""
        return selectors.windows()

    @extend_schema(
        request=MaintenanceWindowInput, responses={201: changed(MaintenanceWindowSerializer)}
    )
    def create(self, request: Request) -> Response:
        """Declare time that does not count; minutes in it that are booked are booked anew."""
        given = self.read(MaintenanceWindowInput)
        return self.carry_out(partial(services.open_window, **given), status=201)

    @extend_schema(request=ChangeInput, responses=changed(MaintenanceWindowSerializer))
    @action(detail=True, methods=["post"])
    def close(self, request: Request, pk: str) -> Response:
        """End a window now; one that has not begun is taken back."""
        self.read(ChangeInput)
        return self.carry_out(
            partial(services.close_window, pk=int(pk)),
            show=lambda made: dict(MaintenanceWindowSerializer(made).data),
        )
