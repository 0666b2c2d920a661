"""REST: replicas, their moves, and what agents last said of them."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.replica_states import State
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Agent, Replica, ReplicaMove
from controlplane.rest.serializers import ReadOnlySerializer, VersionedInput, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.telemetry import recent
from controlplane.telemetry.snapshots import NoData
from routing_agent import wire

ENGINES = get_args(wire.EngineName)


class ReplicaSerializer(ReadOnlySerializer):
    """One engine process with its GPUs, and where it is in its life."""

    id = serializers.CharField(source="public_id")
    pool = serializers.CharField(source="pool.slug")
    node = serializers.CharField(source="node.name", default=None, allow_null=True)
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


class SeenSerializer(serializers.Serializer):
    """A replica as one agent last saw it; null where that agent cannot tell."""

    node = serializers.CharField()
    age_s = serializers.FloatField()
    health = serializers.CharField()
    health_reason = serializers.CharField(allow_blank=True)
    breaker = serializers.CharField()
    inflight_requests = serializers.IntegerField()
    inflight_tokens = serializers.IntegerField()
    engine_running = serializers.IntegerField(allow_null=True)
    engine_waiting = serializers.IntegerField(allow_null=True)
    kv_usage = serializers.FloatField(allow_null=True)
    scrape_age_s = serializers.FloatField(allow_null=True)
    scrape_error = serializers.CharField(allow_blank=True)


class LiveSerializer(serializers.Serializer):
    """What the agents last reported of a replica; `no_data` says why there is nothing."""

    no_data = serializers.CharField(allow_blank=True)
    seen_by = SeenSerializer(many=True)


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

    @extend_schema(responses=LiveSerializer)
    @action(detail=True, methods=["get"], filterset_class=None, pagination_class=None)
    def live(self, request: Request, id: str) -> Response:
        """Say what each agent last reported of a replica: health, queue, KV cache usage."""
        return Response(_live(selectors.replica(id).public_id))

    def _act(
        self, service: Any, replica: str, fields: dict[str, Any], status: int = 200
    ) -> Response:
        version = self.expected_version
        return self.carry_out(
            partial(service, replica_id=replica, expected_version=version, **fields), status=status
        )


def _live(replica: str) -> dict[str, Any]:
    reports = recent.latest_reports()
    if isinstance(reports, NoData):
        return {"no_data": reports.reason, "seen_by": []}
    nodes = dict(Agent.objects.values_list("public_id", "node__name"))
    seen_by = [
        _seen(nodes.get(agent, agent), row, age_s)
        for agent, (report, age_s) in sorted(reports.items())
        for row in report.replicas
        if row.replica == replica
    ]
    return {"no_data": "" if seen_by else "No agent reports this replica.", "seen_by": seen_by}


def _seen(node: str, row: wire.ReplicaReport, age_s: float) -> dict[str, Any]:
    copied = set(SeenSerializer().fields) - {"node", "age_s"}
    return {"node": node, "age_s": age_s, **{name: getattr(row, name) for name in copied}}
