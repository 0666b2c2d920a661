"""Reads of promises, budgets and alerts."""

from controlplane.reliability.selectors.alerts import (
    Firing,
    active_silences,
    alert,
    alerts,
    deliveries,
    firing,
    own_lines,
    rule_lines,
    silence_over,
    silences,
    troubles,
    webhooks,
)
from controlplane.reliability.selectors.slos import (
    Promise,
    budget_freeze,
    frozen,
    objectives_of,
    promise,
    promises,
    windows,
)

__all__ = [
    "Firing",
    "Promise",
    "active_silences",
    "alert",
    "alerts",
    "budget_freeze",
    "deliveries",
    "firing",
    "frozen",
    "objectives_of",
    "own_lines",
    "promise",
    "promises",
    "rule_lines",
    "silence_over",
    "silences",
    "troubles",
    "webhooks",
    "windows",
]
