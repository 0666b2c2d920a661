"""Reads of promises, budgets and alerts."""

from controlplane.reliability.selectors.slos import (
    Promise,
    budget_freeze,
    objectives_of,
    promise,
    promises,
    windows,
)

__all__ = ["Promise", "budget_freeze", "objectives_of", "promise", "promises", "windows"]
