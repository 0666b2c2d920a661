"""Charts of pools, replicas and nodes: what each shows, its data, its first figure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse

from controlplane.audit.models import AuditEvent
from controlplane.console import charts, preferences
from controlplane.console.charts import Chart
from controlplane.console.mixins import RoleRequired
from controlplane.domain.replica_states import State
from controlplane.fleet import selectors
from controlplane.fleet.models import Node
from controlplane.fleet.views import gpu_readings
from controlplane.telemetry import figures, source
from controlplane.telemetry import marks as registered_marks
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.figures import Mark, Target
from controlplane.telemetry.payloads import payload
from controlplane.telemetry.rolling import NODE
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window, window

POOL_CHARTS = {
    "ttft": "Time to first token",
    "requests": "Requests by outcome",
    "queue-wait": "Queue wait",
    "kv": "KV cache usage",
    "hit-rate": "Prefix hit rate",
    "gpu": "GPU utilisation",
    "tpot": "Time per output token",
    "load": "Running and waiting",
    "tokens": "Tokens",
    "e2e": "End to end",
    "preemptions": "Preemptions",
}
REPLICA_CHARTS = {
    "failures": "Requests and errors",
    "load": "Running and waiting",
    "kv": "KV cache usage",
    "hit-rate": "Prefix hit rate",
    "tokens": "Tokens",
    "preemptions": "Preemptions",
    "gpu": "GPU utilisation",
}
NODE_GPU_CHARTS = {
    "utilization": "GPU utilisation",
    "memory": "GPU memory used",
    "temperature": "GPU temperature",
}
NODE_TRAFFIC_CHARTS = {
    "failures": "Requests and errors of its replicas",
    "tokens": "Tokens of its replicas",
    "load": "Running and waiting on its replicas",
    "kv": "KV cache usage of its replicas",
    "hit-rate": "Prefix hit rate of its replicas",
    "preemptions": "Preemptions on its replicas",
}
NODE_CHARTS = NODE_GPU_CHARTS | NODE_TRAFFIC_CHARTS
GPU_FIGURES = {
    "utilization": "utilization",
    "memory": "memory_used_bytes",
    "temperature": "temperature_celsius",
}
# The default objectives (docs/architecture.md): P99 of TTFT and of time per output token.
TARGETS = {
    "ttft": (Target(value=0.3, label="P99 objective 300 ms"),),
    "tpot": (Target(value=0.0333, label="P99 objective 33.3 ms"),),
}
CHANGES_READ = 200
MARKED = ("pool.update", "replica.drain", "replica.eject", "replica.restore", "replica.register")

_bodies = FlightCache(max_entries=512, ttl_s=5.0)  # the key holds the step


def pool_data(pool: str, chart: str, wanted: Window) -> SeriesSet | NoData:
    """Give one chart's figures of a pool."""
    return _pool_gpus(pool, wanted) if chart == "gpu" else source.pool_chart(pool, chart, wanted)


def replica_data(pool: str, replica: str, chart: str, wanted: Window) -> SeriesSet | NoData:
    """Give one chart's figures of a replica."""
    if chart == "gpu":
        return gpu_readings.of_replicas(selectors.replicas().filter(public_id=replica), wanted)
    return source.replica_chart(pool, replica, chart, wanted)


def node_data(node: Node, chart: str, wanted: Window) -> SeriesSet | NoData:
    """Give one chart's figures of a node: of its GPUs, or of its replicas together."""
    if chart in NODE_TRAFFIC_CHARTS:
        return source.level_chart(NODE, node.name, chart, wanted)
    return gpu_readings.of_node(node, GPU_FIGURES[chart], wanted)


def pool_payload(
    pool: str, chart: str, wanted: Window, marked: list[Mark] | None = None
) -> dict[str, Any]:
    """Build one chart of a pool, with marks where its replicas or policy were changed."""
    return payload(
        POOL_CHARTS[chart],
        pool_data(pool, chart, wanted),
        revision=f"{pool}/{chart}/{wanted.steps}",
        targets=TARGETS.get(chart, ()),
        marks=marks(pool, wanted) if marked is None else marked,
    )


def replica_payload(pool: str, replica: str, chart: str, wanted: Window) -> dict[str, Any]:
    """Build one chart of a replica."""
    return payload(
        REPLICA_CHARTS[chart],
        replica_data(pool, replica, chart, wanted),
        revision=f"{replica}/{chart}/{wanted.steps}",
    )


def node_payload(node: Node, chart: str, wanted: Window) -> dict[str, Any]:
    """Build one chart of a node."""
    return payload(
        NODE_CHARTS[chart],
        node_data(node, chart, wanted),
        revision=f"{node.name}/{chart}/{wanted.steps}",
    )


def _pool_gpus(pool: str, wanted: Window) -> SeriesSet | NoData:
    live = selectors.replicas(pool=pool).exclude(state=State.STOPPED)
    return gpu_readings.of_replicas(live, wanted, pool=pool)


def marks(pool: str, wanted: Window) -> list[Mark]:
    """Give what was changed in a pool within a window, and the table's epochs."""
    members = selectors.replicas(pool=pool).values_list("public_id", flat=True)
    return changes(wanted, target__in=[pool, *members])


def changes(wanted: Window, **of: Any) -> list[Mark]:
    """Give the newest changes of pools and replicas within a window, and the table's epochs."""
    since = datetime.fromtimestamp(wanted.start_s, UTC)
    events = AuditEvent.objects.filter(at__gte=since, verb__in=MARKED, **of).order_by("-at")
    columns = events.values_list("at", "verb", "target", "actor")[:CHANGES_READ]
    found = [Mark(at=at, text=f"{verb} {target} by {actor}") for at, verb, target, actor in columns]
    return found + registered_marks.since(since)


def embedded(
    titles: dict[str, str], address: Callable[[str], str], build: Callable[[str], dict[str, Any]]
) -> list[Chart]:
    """Give charts with their first figures, so that the first paint needs no further request."""
    return [
        Chart(id=name, title=title, url=address(name), payload=build(name))
        for name, title in titles.items()
    ]


def pool_charts(pool: str, window_name: str) -> list[Chart]:
    """Give all charts of a pool's page."""
    wanted = window(window_name, time.time())
    marked = marks(pool, wanted)
    return embedded(
        POOL_CHARTS,
        lambda c: reverse("pool-chart", args=[pool, c]) + f"?window={window_name}",
        lambda c: pool_payload(pool, c, wanted, marked),
    )


def replica_charts(pool: str, replica: str, window_name: str) -> list[Chart]:
    """Give all charts of a replica's page."""
    wanted = window(window_name, time.time())
    return embedded(
        REPLICA_CHARTS,
        lambda c: reverse("replica-chart", args=[replica, c]) + f"?window={window_name}",
        lambda c: replica_payload(pool, replica, c, wanted),
    )


def node_charts(node: Node, window_name: str) -> list[Chart]:
    """Give the charts of a node's page."""
    wanted = window(window_name, time.time())
    return embedded(
        NODE_CHARTS,
        lambda c: reverse("node-chart", args=[node.name, c]) + f"?window={window_name}",
        lambda c: node_payload(node, c, wanted),
    )


class ChartView(RoleRequired):
    """Answers with one chart's figure, or 304 when the browser draws it already."""

    known: Sequence[str] = ()

    def get(self, request: HttpRequest, **address: str) -> HttpResponse:
        """Build the figure once for all who ask within two seconds."""
        if address["chart"] not in self.known:
            raise Http404("There is no such chart.")
        wanted = window(preferences.read(request).window, time.time())
        key = (type(self).__name__, *address.values(), wanted.end_s, wanted.steps)
        body = _bodies.get(key, lambda: figures.encode(self.build(wanted, **address)))
        return charts.answer(request, body)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build the payload of one chart."""
        raise NotImplementedError


class PoolChart(ChartView):
    """One chart of a pool."""

    known = tuple(POOL_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it for a pool that exists."""
        selectors.pool(address["slug"])
        return pool_payload(address["slug"], address["chart"], wanted)


class ReplicaChart(ChartView):
    """One chart of a replica."""

    known = tuple(REPLICA_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it for a replica that exists."""
        replica = selectors.replica(address["replica_id"])
        return replica_payload(replica.pool.slug, replica.public_id, address["chart"], wanted)


class NodeChart(ChartView):
    """One GPU chart of a node."""

    known = tuple(NODE_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it for a node that exists."""
        return node_payload(selectors.node(address["name"]), address["chart"], wanted)
