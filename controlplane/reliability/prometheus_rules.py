"""Prometheus' alert rules, written from the same table as our own.

`deploy/prometheus/signalbox-alerts.yml` is this text; a test holds the two equal. What Prometheus
has no figure for (queue depth, KV usage, throughput against the usual) only the control plane
judges; what it alone can tell is that nobody judges any more.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from controlplane.domain.alert_rules import RULES, Rule

_HEAD: Final = """\
# Written from controlplane/domain/alert_rules.py: do not edit. To write it anew:
#   SIGNALBOX_WRITE_SNAPSHOTS=1 pytest tests/controlplane/reliability/test_documents.py
# Needs Prometheus 2.42 or newer, scraping the agents and the control plane's /metrics.
"""
_WATCHED: Final = {
    "alert": "SignalboxAlertsNotJudged",
    "expr": (
        "signalbox_alerts_judged_age_seconds > 60 or absent(signalbox_alerts_judged_age_seconds)"
    ),
    "for": "60s",
    "labels": {"severity": "critical"},
    "annotations": {
        "summary": "Signalbox judges no alerts",
        "description": "Beat or worker is down: its own alerts are blind. Look at bin/status.",
    },
}


def text() -> str:
    """Give the file."""
    rules = [_rule(rule) for rule in RULES if rule.promql]
    groups = {"groups": [{"name": "signalbox", "rules": [*rules, _WATCHED]}]}
    return _HEAD + yaml.safe_dump(groups, sort_keys=False, width=1000)


def _rule(rule: Rule) -> dict[str, Any]:
    name = "".join(part.title() for part in rule.name.split("-"))
    return {
        "alert": f"Signalbox{name}",
        "expr": rule.promql,
        "for": f"{rule.for_s:g}s",
        "keep_firing_for": f"{rule.clear_for_s:g}s",
        "labels": {"severity": rule.severity.value},
        "annotations": {
            "summary": f"{rule.title}: {{{{ $labels.pool }}}}",
            "description": f"{rule.remedy} Now {{{{ $value | humanize }}}}.",
        },
    }
