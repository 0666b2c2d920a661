"""The control loops of routing. Safe twice, late, out of order, and in two workers at once."""

from __future__ import annotations


def sweep() -> str:
    """Publish what is due, bring agents that are behind up to date, and say what was done."""
    raise NotImplementedError


def reconcile_replicas() -> str:
    """Move each replica on by what live agents report of it, and say what was done."""
    raise NotImplementedError
