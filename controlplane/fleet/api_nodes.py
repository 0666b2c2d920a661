"""REST: nodes and their agents."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.fleet import selectors, services
from controlplane.fleet.models import Agent, Node, RegistrationToken
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    StrictSerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet


class GpuSerializer(StrictSerializer):
    """One GPU of a node, or one MIG slice of it."""

    index = serializers.IntegerField(min_value=0)
    model = serializers.CharField(max_length=100)
    memory_bytes = serializers.IntegerField(min_value=0, required=False)
    mig_profile = serializers.CharField(max_length=40, required=False, allow_blank=True)
    simulated = serializers.BooleanField(required=False)


class NodeSerializer(ReadOnlySerializer):
    """A machine: zone, GPUs, driver; as declared and as its agent reports."""

    gpus = serializers.ListField(child=serializers.DictField())
    agent = serializers.CharField(source="agent.public_id", default=None, allow_null=True)
    replica_count = serializers.IntegerField()

    class Meta:
        model = Node
        fields = [
            "name",
            "zone",
            "hostname",
            "driver_version",
            "cuda_version",
            "gpus",
            "agent",
            "replica_count",
            "owner",
            "backup_owner",
            "created_at",
            "updated_at",
            "version",
        ]


class NodeChange(VersionedInput):
    """What may be changed of a node."""

    zone = serializers.CharField(max_length=63, required=False, allow_blank=True)
    hostname = serializers.CharField(max_length=253, required=False, allow_blank=True)
    gpus = GpuSerializer(many=True, required=False)
    owner = serializers.CharField(max_length=120, required=False, allow_blank=True)
    backup_owner = serializers.CharField(max_length=120, required=False, allow_blank=True)


class NodeInput(NodeChange):
    """A new node."""

    name = serializers.CharField(max_length=63)
    version = None  # type: ignore[assignment]


class TokenInput(ChangeInput):
    """How long a registration token lives."""

    lifetime_s = serializers.FloatField(min_value=1, max_value=30 * 86_400, required=False)


class RegistrationTokenSerializer(ReadOnlySerializer):
    """Lets one agent register once; the text is shown this once."""

    node = serializers.CharField(source="node.name")
    plaintext = serializers.CharField(allow_null=True)

    class Meta:
        model = RegistrationToken
        fields = ["node", "created_at", "created_by", "expires_at", "plaintext"]


class NodeFilter(django_filters.FilterSet):
    """Which nodes."""

    search = django_filters.CharFilter("name", "icontains")

    class Meta:
        model = Node
        fields = ["name", "zone", "owner"]


class NodeViewSet(ReadMixin, ServiceViewSet):
    """Machines, and the tokens by which their agents register."""

    required_role = "admin"
    required_roles = {"create": "operator", "partial_update": "operator"}
    lookup_field = "name"
    queryset = Node.objects.none()
    serializer_class = NodeSerializer
    ordering_more = ("replica_count",)
    filterset_class = NodeFilter

    def get_queryset(self) -> QuerySet[Node]:
        """Give all nodes."""
        return selectors.nodes()

    @extend_schema(request=NodeInput, responses={201: changed(NodeSerializer)})
    def create(self, request: Request) -> Response:
        """Declare a machine."""
        return self.carry_out(partial(services.create_node, **self.read(NodeInput)), status=201)

    @extend_schema(request=NodeChange, responses=changed(NodeSerializer))
    def partial_update(self, request: Request, name: str) -> Response:
        """Change what is declared of a node."""
        changes = self.read(NodeChange, partial=True)
        version = self.expected_version
        return self.carry_out(
            partial(services.update_node, name=name, expected_version=version, **changes)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Remove a node and forget its agent; refused while replicas stand on it."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_node, name=name, expected_version=version), status=204
        )

    @extend_schema(request=TokenInput, responses={201: changed(RegistrationTokenSerializer)})
    @action(detail=True, methods=["post"], url_path="registration-token")
    def registration_token(self, request: Request, name: str) -> Response:
        """Make a token by which one agent may register once; its text is shown this once."""
        given = self.read(TokenInput)
        return self.carry_out(
            partial(services.issue_registration_token, node=name, **given),
            status=201,
            show=_issued_token,
        )


def _issued_token(issued: tuple[RegistrationToken, str]) -> dict[str, Any]:
    token, text = issued
    return {
        "node": token.node.name,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "plaintext": text,
    }


class AgentSerializer(ReadOnlySerializer):
    """Our process on a node, and what it last said it runs."""

    id = serializers.CharField(source="public_id")
    node = serializers.CharField(source="node.name")
    alive = serializers.SerializerMethodField()

    class Meta:
        model = Agent
        fields = [
            "id",
            "node",
            "alive",
            "traffic_url",
            "admin_url",
            "agent_version",
            "registered_at",
            "last_seen_at",
            "started_at",
            "applied_epoch",
            "applied_revision",
            "table_source",
            "draining",
        ]

    def get_alive(self, agent: Agent) -> bool:
        """Say whether the agent was heard of lately."""
        silent_after = timedelta(seconds=settings.AGENT_SILENT_AFTER_S)
        seen = agent.last_seen_at
        return seen is not None and timezone.now() - seen <= silent_after


class AgentFilter(django_filters.FilterSet):
    """Which agents."""

    node = django_filters.CharFilter("node__name")

    class Meta:
        model = Agent
        fields = ["applied_epoch", "draining"]


class AgentViewSet(
    mixins.RetrieveModelMixin, mixins.ListModelMixin, viewsets.GenericViewSet[Agent]
):
    """Agents register themselves; here they are looked at."""

    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    queryset = Agent.objects.none()
    serializer_class = AgentSerializer
    filterset_class = AgentFilter

    def get_queryset(self) -> QuerySet[Agent]:
        """Give all agents."""
        return selectors.agents()
