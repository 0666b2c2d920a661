"""Answers "where would this request go, and why?" with the code that routes real requests."""

from __future__ import annotations

from routing_agent.core.fleet import Fleet
from routing_agent.wire import Explanation, ExplainRequest


def explain(fleet: Fleet, request: ExplainRequest, *, now: float) -> Explanation:
    """Say where a request would go at this moment, without sending or charging it."""
    raise NotImplementedError
