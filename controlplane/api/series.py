"""REST: the figures that charts draw, as numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.errors import Invalid
from controlplane.fleet import selectors as fleet
from controlplane.fleet.views import charts
from controlplane.rest.serializers import StrictSerializer
from controlplane.telemetry import source
from controlplane.telemetry.rolling import FLEET, NODE, POOL, TENANT, VERSION
from controlplane.telemetry.series import READINGS
from controlplane.telemetry.snapshots import (
    DEFAULT_WINDOW,
    WINDOWS,
    NoData,
    SeriesSet,
    Window,
    window,
)
from controlplane.tenants import selectors as tenants

REPLICA = "replica"
LEVELS = (FLEET, POOL, REPLICA, VERSION, NODE, TENANT)
Answer = SeriesSet | NoData


class SeriesInput(StrictSerializer):
    """Which figures of what, and of which time."""

    level = serializers.ChoiceField(choices=LEVELS, default=FLEET)
    subject = serializers.CharField(
        max_length=310,
        default="",
        allow_blank=True,
        help_text="A pool's or tenant's slug, a replica's id, a node's name, model:version.",
    )
    chart = serializers.ChoiceField(
        choices=[*READINGS, *charts.NODE_GPU_CHARTS], default="requests"
    )
    window = serializers.ChoiceField(choices=list(WINDOWS), default=DEFAULT_WINDOW)


class LineSerializer(serializers.Serializer):
    """One named line; null where nothing is known, which is not zero."""

    name = serializers.CharField()
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))


class SeriesSerializer(serializers.Serializer):
    """The figures of one chart, or the reason why there are none."""

    level = serializers.CharField()
    subject = serializers.CharField(allow_blank=True)
    chart = serializers.CharField()
    window = serializers.CharField()
    unit = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]  # a field like any
    note = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True, help_text="Why there are no figures.")
    step_s = serializers.IntegerField()
    span_s = serializers.IntegerField(help_text="Each point covers this long before its time.")
    newest_at = serializers.DateTimeField(allow_null=True)
    times = serializers.ListField(child=serializers.DateTimeField())
    series = LineSerializer(many=True)


class SeriesViewSet(viewsets.ViewSet):
    """Figures over time, from the same stores and with the same gaps as the console's charts."""

    required_role = "viewer"

    @extend_schema(
        parameters=[SeriesInput], responses={200: forced_singular_serializer(SeriesSerializer)}
    )
    def list(self, request: Request) -> Response:
        """Give one chart's figures."""
        given = SeriesInput(data=request.query_params.dict())
        given.is_valid(raise_exception=True)
        asked: dict[str, str] = given.validated_data
        wanted = window(asked["window"], time.time())
        found = READERS[asked["level"]](asked["subject"], asked["chart"], wanted)
        return Response(dict(asked) | shown(found, wanted))


def shown(found: Answer, wanted: Window) -> dict[str, Any]:
    """Give figures as JSON, or why there are none."""
    if isinstance(found, NoData):
        empty = SeriesSet(window=wanted, unit="", series={}, source="")
        return shown(empty, wanted) | {"reason": found.reason, "times": []}
    newest_s = found.newest_s if found.series else None
    return {
        "unit": found.unit,
        "source": found.source,
        "note": found.note,
        "reason": "",
        "step_s": found.window.step_s,
        "span_s": found.window.span_s,
        "newest_at": None if newest_s is None else moment(newest_s),
        "times": [moment(at) for at in found.window.times],
        "series": [{"name": n, "values": list(v)} for n, v in found.series.items()],
    }


def moment(at_s: int) -> datetime:
    """Turn Unix seconds into a time."""
    return datetime.fromtimestamp(at_s, UTC)


def _level(level: str) -> Callable[[str, str, Window], Answer]:
    def read(subject: str, chart: str, wanted: Window) -> Answer:
        return source.level_chart(level, subject, known(chart, READINGS), wanted)

    return read


def _pool(slug: str, chart: str, wanted: Window) -> Answer:
    return charts.pool_data(fleet.pool(slug).slug, known(chart, charts.POOL_CHARTS), wanted)


def _replica(replica_id: str, chart: str, wanted: Window) -> Answer:
    row = fleet.replica(replica_id)
    chart = known(chart, charts.REPLICA_CHARTS)
    return charts.replica_data(row.pool.slug, row.public_id, chart, wanted)


def _node(name: str, chart: str, wanted: Window) -> Answer:
    return charts.node_data(fleet.node(name), known(chart, charts.NODE_CHARTS), wanted)


def _tenant(slug: str, chart: str, wanted: Window) -> Answer:
    return _level(TENANT)(tenants.tenant(slug).slug, chart, wanted)


def known(chart: str, charts_there: Mapping[str, Any]) -> str:
    """Give a chart's name back.

    Raises:
        Invalid: if there is no such chart at this level; the message names those there are.
    """
    if chart not in charts_there:
        raise Invalid(f"There is no such chart here: use one of {', '.join(charts_there)}.")
    return chart


READERS: Mapping[str, Callable[[str, str, Window], Answer]] = {
    FLEET: lambda subject, chart, wanted: _level(FLEET)("", chart, wanted),
    POOL: _pool,
    REPLICA: _replica,
    VERSION: _level(VERSION),
    NODE: _node,
    TENANT: _tenant,
}
