"""REST: how the control plane itself is."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import readiness, wake
from controlplane.audit.selectors import fleet_revision
from controlplane.routing import selectors
from controlplane.routing.models import LoopRun


class LoopSerializer(serializers.Serializer):
    """A control loop's last run."""

    name = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    duration_s = serializers.FloatField(allow_null=True)
    interval_s = serializers.FloatField()
    age_s = serializers.FloatField()
    outcome = serializers.CharField()


class PublicationSerializer(serializers.Serializer):
    """Where publishing stands."""

    lineage = serializers.CharField()
    epoch = serializers.IntegerField()
    fleet_revision = serializers.IntegerField()
    published_revision = serializers.IntegerField()
    halted_reason = serializers.CharField(allow_blank=True)
    halted_at = serializers.DateTimeField(allow_null=True)
    agents_behind = serializers.ListField(child=serializers.CharField())


class SystemSerializer(serializers.Serializer):
    """The control plane's own health."""

    status = serializers.ChoiceField(choices=["ready", "degraded", "unready"])
    redis_fault = serializers.CharField(allow_blank=True)
    missing_migrations = serializers.ListField(child=serializers.CharField())
    broker_errors_total = serializers.IntegerField()
    publication = PublicationSerializer()
    loops = LoopSerializer(many=True)


class SystemViewSet(viewsets.ViewSet):
    """How the control plane is: database, broker, publication, loops."""

    @extend_schema(responses={200: forced_singular_serializer(SystemSerializer)})
    def list(self, request: Request) -> Response:
        """Give everything at once."""
        found = readiness.look()
        return Response(
            {
                "status": found.status,
                "redis_fault": found.broker_fault,
                "missing_migrations": list(found.missing_migrations),
                "broker_errors_total": wake.broker_errors_total(),
                "publication": _publication(),
                "loops": [_loop(run) for run in LoopRun.objects.order_by("name")],
            }
        )


def _publication() -> dict[str, Any]:
    row = selectors.publication()
    return {
        "lineage": row.lineage,
        "epoch": row.epoch,
        "fleet_revision": fleet_revision(),
        "published_revision": row.published_revision,
        "halted_reason": row.halted_reason,
        "halted_at": row.halted_at,
        "agents_behind": [agent.node.name for agent in selectors.agents_behind()],
    }


def _loop(run: LoopRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "duration_s": run.duration_s,
        "interval_s": run.interval_s,
        "age_s": (timezone.now() - run.started_at).total_seconds(),
        "outcome": run.outcome,
    }
