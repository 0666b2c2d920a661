"""One table of rules: the documentation and Prometheus' file say what the code does."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from django.test import Client
from django.utils import timezone

from controlplane.api.metrics import ControlPlaneCollector
from controlplane.domain.alert_rules import RULES
from controlplane.domain.alerts import amount
from controlplane.reliability import prometheus_rules, services
from controlplane.reliability.models import AlertRun
from routing_agent import metrics_page
from tests.factories import WHY, make_pool

ROOT = Path(__file__).parents[3]
RULES_FILE = ROOT / "deploy/prometheus/signalbox-alerts.yml"
DOCUMENT = ROOT / "docs/reliability.md"
BEGIN = "<!-- alert rules -->"


def rows() -> str:
    """Give the table's rows as docs/reliability.md must show them."""
    lines = []
    for rule in RULES:
        limit = "the pool's objective"
        if rule.threshold is not None:
            limit = amount(rule.threshold, rule.unit)
        lasts = f"{rule.for_s:g} s" if rule.for_s else "at once"
        title = f"{rule.title} ({rule.severity}, {rule.scope})"
        lines.append(f"| {title} | {rule.comparison} {limit} | {lasts} |")
    return "\n".join(lines)


def with_rows(text: str) -> str:
    head, _, rest = text.partition("| rule | fires when | for |\n|---|---|---|\n")
    tail = rest[rest.index("\n\n") :] if "\n\n" in rest else rest
    return f"{head}| rule | fires when | for |\n|---|---|---|\n{rows()}{tail}"


def test_the_documentation_lists_every_rule():
    text = DOCUMENT.read_text()
    if os.environ.get("SIGNALBOX_WRITE_SNAPSHOTS"):
        DOCUMENT.write_text(with_rows(text))
    assert rows() in DOCUMENT.read_text()


def test_prometheus_rules_are_written_from_the_same_table():
    if os.environ.get("SIGNALBOX_WRITE_SNAPSHOTS"):
        RULES_FILE.parent.mkdir(parents=True, exist_ok=True)
        RULES_FILE.write_text(prometheus_rules.text())
    assert RULES_FILE.read_text() == prometheus_rules.text()


@pytest.mark.django_db
def test_prometheus_rules_ask_only_for_figures_that_are_there():
    make_pool("chat")
    AlertRun.objects.create(pk=1, at=timezone.now(), rules={})
    told = {family.name for family in ControlPlaneCollector().collect()}
    names = re.findall(r'"([a-z0-9_]+)"', Path(metrics_page.__file__).read_text())  # the agent's
    told |= {f"signalbox_{name}" for name in names}
    rules = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
    for rule in rules:
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule["alert"]
        for name in re.findall(r"signalbox_\w+", rule["expr"]):
            assert name.removesuffix("_bucket") in told, name
        assert rule["annotations"]["summary"]


@pytest.mark.django_db
def test_promises_and_alerts_are_scraped():
    make_pool("chat")
    services.set_slo(pool="chat", ttft_p99_s=1.5, **WHY)
    page = Client().get("/metrics").content.decode()
    assert 'signalbox_slo_ttft_p99_seconds{pool="chat"} 1.5' in page
    assert "signalbox_error_budget_spent_ratio{" not in page  # nothing is known: no figure
