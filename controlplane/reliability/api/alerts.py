"""REST: alerts, the rules they go by, and silences."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.alert_rules import BY_NAME
from controlplane.domain.alerts import State, is_stale
from controlplane.reliability import selectors, services
from controlplane.reliability.models import Alert, Silence
from controlplane.rest.serializers import ChangeInput, ReadOnlySerializer, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet


class AlertSerializer(ReadOnlySerializer):
    """One rule broken by one subject, from when it began to when it ended."""

    title = serializers.SerializerMethodField()
    unit = serializers.SerializerMethodField()
    remedy = serializers.SerializerMethodField()
    is_stale = serializers.SerializerMethodField(
        help_text="No data for so long that value and reason are of the past."
    )
    silenced = serializers.SerializerMethodField(
        help_text="Id of the silence that keeps it from being told; null: none."
    )

    class Meta:
        model = Alert
        fields = [
            "id",
            "rule",
            "title",
            "subject",
            "pool",
            "severity",
            "state",
            "since",
            "fired_at",
            "resolved_at",
            "no_data_since",
            "is_stale",
            "value",
            "threshold",
            "unit",
            "reason",
            "remedy",
            "acknowledged_by",
            "acknowledged_at",
            "note",
            "silenced",
        ]

    def get_title(self, alert: Alert) -> str:
        """Give the rule in words."""
        return BY_NAME[alert.rule].title if alert.rule in BY_NAME else alert.rule

    def get_unit(self, alert: Alert) -> str:
        """Give the unit of value and threshold."""
        return BY_NAME[alert.rule].unit if alert.rule in BY_NAME else ""

    def get_remedy(self, alert: Alert) -> str:
        """Say what to do."""
        return BY_NAME[alert.rule].remedy if alert.rule in BY_NAME else ""

    def get_is_stale(self, alert: Alert) -> bool:
        """Say whether it fires on figures of the past."""
        return alert.state != State.RESOLVED and is_stale(alert.no_data_since, now=timezone.now())

    def get_silenced(self, alert: Alert) -> int | None:
        """Name the silence that covers it."""
        found = selectors.silence_over(alert, self.context)
        return found.pk if found else None


class AlertFilter(django_filters.FilterSet):
    """Which alerts."""

    class Meta:
        model = Alert
        fields = ["state", "rule", "pool", "subject", "severity"]


class AlertRuleSerializer(serializers.Serializer[Any]):
    """A rule, and how its subjects stood at the last look."""

    name = serializers.CharField()
    title = serializers.CharField()
    scope = serializers.CharField()
    severity = serializers.CharField()
    unit = serializers.CharField()
    threshold = serializers.FloatField(allow_null=True, help_text="Null: the pool's own promise.")
    clear = serializers.FloatField(allow_null=True)
    is_under = serializers.BooleanField(help_text="It fires below its threshold.")
    for_s = serializers.FloatField()
    clear_for_s = serializers.FloatField()
    remedy = serializers.CharField()
    ok = serializers.IntegerField(allow_null=True)
    pending = serializers.IntegerField(allow_null=True)
    firing = serializers.IntegerField(allow_null=True)
    no_data = serializers.IntegerField(allow_null=True)
    missing = serializers.DictField(
        child=serializers.IntegerField(), help_text="Why there is no data, and for how many."
    )


class AlertRulesSerializer(serializers.Serializer[Any]):
    """All rules."""

    judged_at = serializers.DateTimeField(allow_null=True)
    rules = AlertRuleSerializer(many=True)


class AlertViewSet(ReadMixin, ServiceViewSet):
    """Alerts: what fires, fired, and soon may; acknowledge one."""

    lookup_value_regex = r"\d{1,18}"
    queryset = Alert.objects.none()
    serializer_class = AlertSerializer
    filterset_class = AlertFilter
    ordering_more = ("title",)

    def get_queryset(self) -> QuerySet[Alert]:
        """Give all alerts, those that fire first."""
        return selectors.alerts()

    @extend_schema(request=ChangeInput, responses=changed(AlertSerializer))
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, pk: str) -> Response:
        """Note who looks after it; the reason is kept as its note."""
        self.read(ChangeInput)
        return self.carry_out(partial(services.acknowledge_alert, pk=int(pk)))

    @extend_schema(responses=AlertRulesSerializer)
    @action(detail=False, methods=["get"], filterset_class=None, pagination_class=None)
    def rules(self, request: Request) -> Response:
        """Give the rules, and how many subjects of each are fine, firing or without data."""
        at, lines = selectors.rule_lines()
        shown = [{**dataclasses.asdict(line.rule), **dataclasses.asdict(line)} for line in lines]
        return Response(AlertRulesSerializer({"judged_at": at, "rules": shown}).data)


class SilenceSerializer(ReadOnlySerializer):
    """Alerts that nobody is told of for a time."""

    active = serializers.SerializerMethodField()

    class Meta:
        model = Silence
        fields = [
            "id",
            "rule",
            "pool",
            "starts_at",
            "ends_at",
            "active",
            "reason",
            "created_by",
            "created_at",
        ]

    def get_active(self, silence: Silence) -> bool:
        """Say whether it holds now."""
        return silence.starts_at <= timezone.now() < silence.ends_at


class SilenceInput(ChangeInput):
    """A new silence: of a rule, a pool, or a rule in a pool."""

    rule = serializers.CharField(max_length=40, required=False, allow_blank=True)
    pool = serializers.CharField(max_length=63, required=False, allow_blank=True)
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField()


class SilenceFilter(django_filters.FilterSet):
    """Which silences."""

    class Meta:
        model = Silence
        fields = ["rule", "pool", "created_by"]


class SilenceViewSet(ReadMixin, ServiceViewSet):
    """Silences: made, and ended early."""

    lookup_value_regex = r"\d{1,18}"
    queryset = Silence.objects.none()
    serializer_class = SilenceSerializer
    filterset_class = SilenceFilter

    def get_queryset(self) -> QuerySet[Silence]:
        """Give all silences, those that last longest first."""
        return selectors.silences()

    @extend_schema(request=SilenceInput, responses={201: changed(SilenceSerializer)})
    def create(self, request: Request) -> Response:
        """Keep alerts from being told; lists still show them."""
        return self.carry_out(
            partial(services.create_silence, **self.read(SilenceInput)), status=201
        )

    @extend_schema(request=ChangeInput, responses=changed(SilenceSerializer))
    @action(detail=True, methods=["post"])
    def end(self, request: Request, pk: str) -> Response:
        """End a silence now; what still fires is told then."""
        self.read(ChangeInput)
        return self.carry_out(partial(services.end_silence, pk=int(pk)))
