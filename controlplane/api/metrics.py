"""The control plane's own figures, read from the database at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError
from django.db.models import Count
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controlplane import wake
from controlplane.audit.selectors import fleet_revision
from controlplane.fleet.models import Replica
from controlplane.reliability import selectors as reliability
from controlplane.routing import selectors
from controlplane.routing.models import LoopRun


class ControlPlaneCollector(Collector):
    """Broker, database, publication, deliveries, loops and replicas."""

    def collect(self) -> Iterator[Metric]:
        """Give every figure; without a database only what this process knows itself."""
        yield CounterMetricFamily(
            "signalbox_broker_errors",
            "Times this process failed to reach the broker.",
            value=wake.broker_errors_total(),
        )
        try:
            figures = list(_from_database())
        except DatabaseError:
            figures = [_gauge("signalbox_database_up", "1 if the database answers.", 0)]
        yield from figures


def _from_database() -> Iterator[Metric]:
    published = selectors.publication()
    behind = len(selectors.agents_behind())
    yield _gauge("signalbox_database_up", "1 if the database answers.", 1)
    yield _gauge("signalbox_fleet_revision", "Changes to the fleet so far.", fleet_revision())
    yield _gauge(
        "signalbox_published_revision",
        "The fleet revision that the newest table covers.",
        published.published_revision,
    )
    yield _gauge("signalbox_table_epoch", "The newest published epoch.", published.epoch)
    halted = int(bool(published.halted_reason))
    yield _gauge("signalbox_publishing_halted", "1 if publishing has stopped.", halted)
    yield _gauge("signalbox_agents_behind", "Agents without the newest table.", behind)
    yield from _loops()
    yield _replicas()
    yield from _promises()
    yield from _alerts()


def _loops() -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "signalbox_loop_age_seconds", "Since a control loop last began.", labels=["loop"]
    )
    duration = GaugeMetricFamily(
        "signalbox_loop_duration_seconds", "How long its last run took.", labels=["loop"]
    )
    now = timezone.now()
    for run in LoopRun.objects.order_by("name"):
        age.add_metric([run.name], max(0.0, (now - run.started_at).total_seconds()))
        if run.duration_s is not None:
            duration.add_metric([run.name], run.duration_s)
    yield age
    yield duration


def _replicas() -> Metric:
    family = GaugeMetricFamily("signalbox_replicas", "Replicas by state.", labels=["state"])
    rows = Replica.objects.order_by("state").values_list("state").annotate(Count("pk"))
    for state, count in rows:
        family.add_metric([state], count)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _promises() -> Iterator[Metric]:
    """Give what pools promise: Prometheus' alert rules compare with it."""
    told = (
        ("ttft_p99_seconds", "TTFT that 99 % of requests keep.", lambda o: o.ttft_p99_s),
        ("tpot_p99_seconds", "TPOT that 99 % of requests keep.", lambda o: o.tpot_p99_s),
        ("allowed_ratio", "Share of time that may go wrong.", lambda o: o.allowed_ratio),
    )
    promises = reliability.promises()
    for name, text, read in told:
        family = GaugeMetricFamily(f"signalbox_slo_{name}", text, labels=["pool"])
        for promise in promises:
            family.add_metric([promise.pool], read(promise.objectives))
        yield family
    spent = GaugeMetricFamily(
        "signalbox_error_budget_spent_ratio", "Of this month's error budget.", labels=["pool"]
    )
    for promise in promises:
        if promise.budget.state != "no-data":
            spent.add_metric([promise.pool], promise.budget.spent_ratio)
    yield spent


def _alerts() -> Iterator[Metric]:
    firing = GaugeMetricFamily(
        "signalbox_alerts_firing", "Alerts that fire, by rule.", labels=["rule", "severity"]
    )
    judged_at, rules = reliability.rule_lines()
    for line in rules:
        if line.firing is not None:
            firing.add_metric([line.rule.name, line.rule.severity.value], line.firing)
    yield firing
    if judged_at is not None:
        age_s = max(0.0, (timezone.now() - judged_at).total_seconds())
        yield _gauge("signalbox_alerts_judged_age_seconds", "Since rules were judged.", age_s)


registry = CollectorRegistry()
registry.register(ControlPlaneCollector())
