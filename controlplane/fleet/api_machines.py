"""REST: nodes, agents and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, get_args

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.replica_states import State
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Agent, Node, RegistrationToken, Replica, ReplicaMove
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    StrictSerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from routing_agent import wire

ENGINES = get_args(wire.EngineName)


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
    agent = serializers.CharField(source="agent.public_id", default=None)
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
    required_roles: Mapping[str, str] = {"create": "operator", "partial_update": "operator"}
    lookup_field = "name"
    queryset = Node.objects.none()
    serializer_class = NodeSerializer
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


class ReplicaSerializer(ReadOnlySerializer):
    """One engine process with its GPUs, and where it is in its life."""

    id = serializers.CharField(source="public_id")
    pool = serializers.CharField(source="pool.slug")
    node = serializers.CharField(source="node.name", default=None)
    gpu_indices = serializers.ListField(child=serializers.IntegerField())
    has_credential = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = [
            "id",
            "pool",
            "node",
            "executor",
            "url",
            "engine",
            "engine_version",
            "served_model",
            "has_credential",
            "gpu_indices",
            "weight",
            "state",
            "state_since",
            "state_reason",
            "state_actor",
            "ejected_by_operator",
            "ready_at",
            "drain_deadline_at",
            "created_at",
            "version",
        ]

    def get_has_credential(self, replica: Replica) -> bool:
        """Say whether an engine credential is stored; it is never shown."""
        return bool(replica.credential)


class ReplicaMoveSerializer(ReadOnlySerializer):
    """One step of a replica's life."""

    class Meta:
        model = ReplicaMove
        fields = ["at", "from_state", "to_state", "reason", "actor"]


class ReplicaChange(VersionedInput):
    """What may be changed of a replica."""

    url = serializers.CharField(max_length=300, required=False)
    node = serializers.CharField(max_length=63, required=False, allow_null=True)
    engine = serializers.ChoiceField(choices=ENGINES, required=False)
    engine_version = serializers.CharField(max_length=60, required=False, allow_blank=True)
    served_model = serializers.CharField(max_length=200, required=False, allow_blank=True)
    credential = serializers.CharField(
        max_length=300, required=False, allow_blank=True, help_text="Stored, never shown."
    )
    gpu_indices = serializers.ListField(child=serializers.IntegerField(min_value=0), required=False)
    weight = serializers.FloatField(min_value=0.01, required=False)


class ReplicaInput(ReplicaChange):
    """An engine somebody else runs, to be routed to."""

    pool = serializers.CharField(max_length=63)
    url = serializers.CharField(max_length=300)
    version = None  # type: ignore[assignment]


class DrainInput(VersionedInput):
    """How long running streams may go on; the pool's drain limit if not said."""

    limit_s = serializers.FloatField(min_value=0.1, max_value=1800, required=False)


class ReplicaFilter(django_filters.FilterSet):
    """Which replicas."""

    pool = django_filters.CharFilter("pool__slug")
    node = django_filters.CharFilter("node__name")
    model = django_filters.CharFilter("pool__model_version__model__name")
    state = django_filters.MultipleChoiceFilter(choices=[(s.value, s.value) for s in State])

    class Meta:
        model = Replica
        fields = ["engine", "executor", "url"]


class ReplicaViewSet(ReadMixin, ServiceViewSet):
    """Replicas: register, look at, drain, eject, restore."""

    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    queryset = Replica.objects.none()
    serializer_class = ReplicaSerializer
    filterset_class = ReplicaFilter

    def get_queryset(self) -> QuerySet[Replica]:
        """Give all replicas."""
        return selectors.replicas()

    @extend_schema(request=ReplicaInput, responses={201: changed(ReplicaSerializer)})
    def create(self, request: Request) -> Response:
        """Take an engine into a pool; it gets traffic once agents find it warm."""
        given = self.read(ReplicaInput)
        return self.carry_out(partial(services.register_replica, **given), status=201)

    @extend_schema(request=ReplicaChange, responses=changed(ReplicaSerializer))
    def partial_update(self, request: Request, id: str) -> Response:
        """Change how a replica is reached."""
        return self._act(services.update_replica, id, self.read(ReplicaChange, partial=True))

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Forget a replica that has no traffic."""
        self.read_removal()
        return self._act(services.delete_replica, id, {}, status=204)

    @extend_schema(request=DrainInput, responses=changed(ReplicaSerializer))
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, id: str) -> Response:
        """Stop new work; running streams go on until the drain deadline."""
        return self._act(services.drain_replica, id, self.read(DrainInput))

    @extend_schema(request=VersionedInput, responses=changed(ReplicaSerializer))
    @action(detail=True, methods=["post"])
    def eject(self, request: Request, id: str) -> Response:
        """Take a replica out until it is restored."""
        return self._act(services.eject_replica, id, self.read(VersionedInput))

    @extend_schema(request=VersionedInput, responses=changed(ReplicaSerializer))
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, id: str) -> Response:
        """Bring a replica back: from ejected, draining, stopped or failed."""
        return self._act(services.restore_replica, id, self.read(VersionedInput))

    @extend_schema(responses=ReplicaMoveSerializer(many=True))
    @action(detail=True, methods=["get"], filterset_class=None)
    def moves(self, request: Request, id: str) -> Response:
        """List the steps of a replica's life, newest first."""
        page = self.paginate_queryset(selectors.replica(id).moves.all())
        return self.get_paginated_response(ReplicaMoveSerializer(page, many=True).data)

    def _act(
        self, service: Any, replica: str, fields: dict[str, Any], status: int = 200
    ) -> Response:
        version = self.expected_version
        return self.carry_out(
            partial(service, replica_id=replica, expected_version=version, **fields), status=status
        )
