"""REST: published tables, their deliveries, and explanations of where a request would go."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from django.db.models import Count, Q, QuerySet
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.errors import Invalid
from controlplane.rest.serializers import (
    ChangeInput,
    ObservedSerializer,
    ReadOnlySerializer,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.routing import selectors, services
from controlplane.routing.models import Delivery, RoutingEpoch
from routing_agent import wire


class RoutingTableSerializer(ReadOnlySerializer):
    """One published table, without its content."""

    left_out = serializers.ListField(child=serializers.DictField())
    delivery_count = serializers.IntegerField()
    applied_count = serializers.IntegerField()

    class Meta:
        model = RoutingEpoch
        fields = [
            "epoch",
            "fleet_revision",
            "digest",
            "created_at",
            "reason",
            "left_out",
            "delivery_count",
            "applied_count",
        ]


class RoutingTableDetailSerializer(RoutingTableSerializer):
    """One published table with its content; credentials and key hashes are replaced."""

    table = serializers.SerializerMethodField()

    class Meta(RoutingTableSerializer.Meta):
        fields = [*RoutingTableSerializer.Meta.fields, "table"]

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_table(self, row: RoutingEpoch) -> Any:
        """Give the table as agents have it, redacted."""
        table = msgspec.json.decode(bytes(row.table), type=wire.RoutingTable)
        return msgspec.to_builtins(wire.redacted(table))


class DeliverySerializer(ReadOnlySerializer):
    """What became of one table at one agent."""

    agent = serializers.CharField(source="agent.public_id")
    node = serializers.CharField(source="agent.node.name")
    epoch = serializers.IntegerField(source="epoch.epoch")
    lag_s = serializers.SerializerMethodField()

    class Meta:
        model = Delivery
        fields = [
            "agent",
            "node",
            "epoch",
            "outcome",
            "detail",
            "attempts",
            "source",
            "first_tried_at",
            "finished_at",
            "lag_s",
        ]

    def get_lag_s(self, delivery: Delivery) -> float | None:
        """Give the seconds from publication to the agent's answer; null while there is none."""
        if delivery.finished_at is None:
            return None
        return (delivery.finished_at - delivery.epoch.created_at).total_seconds()


class RevisionObservedSerializer(ObservedSerializer):
    """How many agents run a table that covers a revision."""

    revision = serializers.IntegerField()
    complete = serializers.BooleanField()


class RetryInput(ChangeInput):
    """Which agent gets the newest table again."""

    agent = serializers.CharField(max_length=32)


class RepublishedSerializer(serializers.Serializer):
    """The table published anew."""

    epoch = serializers.IntegerField()


class RetriedSerializer(serializers.Serializer):
    """The agent that was tried again."""

    agent = serializers.CharField()


class RoutingTableViewSet(ReadMixin, ServiceViewSet):
    """Published tables by epoch; `current` is the newest."""

    lookup_field = "epoch"
    lookup_value_regex = r"\d{1,18}|current"
    queryset = RoutingEpoch.objects.none()
    serializer_class = RoutingTableSerializer

    def get_queryset(self) -> QuerySet[RoutingEpoch]:
        """Give all tables, their content left in the database unless one is looked at."""
        applied = Q(deliveries__outcome=Delivery.Outcome.APPLIED)
        rows = RoutingEpoch.objects.annotate(
            delivery_count=Count("deliveries"), applied_count=Count("deliveries", filter=applied)
        )
        return rows if self.action == "retrieve" else rows.defer("table")

    def get_serializer_class(self) -> type[serializers.Serializer]:
        """Show the content only where one table is looked at."""
        return RoutingTableDetailSerializer if self.action == "retrieve" else RoutingTableSerializer

    def get_object(self) -> RoutingEpoch:
        """Give the table of the path."""
        if self.kwargs["epoch"] != "current":
            return super().get_object()
        # Counting deliveries groups the rows, and a grouped query forgets the model's ordering.
        newest = self.get_queryset().order_by("-epoch").first()
        if newest is None:
            raise Http404
        return newest

    @extend_schema(responses=DeliverySerializer(many=True))
    @action(detail=True, methods=["get"])
    def deliveries(self, request: Request, epoch: str) -> Response:
        """List what became of a table at each agent."""
        rows = Delivery.objects.filter(epoch=self.get_object())
        page = self.paginate_queryset(
            rows.select_related("agent__node", "epoch")
            .defer("epoch__table")
            .order_by("agent__node__name")
        )
        return self.get_paginated_response(DeliverySerializer(page, many=True).data)

    @extend_schema(
        parameters=[OpenApiParameter("revision", OpenApiTypes.INT, required=True)],
        responses=RevisionObservedSerializer,
    )
    @action(detail=False, methods=["get"], pagination_class=None)
    def observed(self, request: Request) -> Response:
        """Say how many agents run a table that covers a revision; poll until complete."""
        said = request.query_params.get("revision", "")
        if not (said.isascii() and said.isdigit() and len(said) < 19):
            raise Invalid("revision is a whole number, as a write answered it.", field="revision")
        seen = selectors.observed(int(said))
        return Response(
            {
                "revision": int(said),
                "n": seen.n,
                "m": seen.m,
                "agents_behind": list(seen.agents_behind),
                "silent": list(seen.silent),
                "complete": seen.complete,
            }
        )

    @extend_schema(
        request=ChangeInput,
        responses=changed(RepublishedSerializer),
        extensions={"x-immediate": True},
    )
    @action(detail=False, methods=["post"])
    def republish(self, request: Request) -> Response:
        """Publish the fleet as it is under a new epoch."""
        self.read(ChangeInput)
        return self.carry_out_now(services.republish, show=lambda epoch: {"epoch": epoch})

    @extend_schema(
        request=RetryInput,
        responses=changed(RetriedSerializer),
        extensions={"x-immediate": True},
    )
    @action(detail=False, methods=["post"])
    def retry(self, request: Request) -> Response:
        """Push the newest table to one agent again, now."""
        agent = self.read(RetryInput)["agent"]
        return self.carry_out_now(
            partial(services.retry_delivery, agent=agent), show=lambda _: {"agent": agent}
        )
