"""What agents tell us: registration, reports, and the pull of a table."""

from __future__ import annotations

from controlplane.routing.models import RoutingEpoch
from routing_agent import wire


def register_agent(*, request: wire.RegisterRequest) -> wire.RegisterReply:
    """Give an agent its identity for a one-time token."""
    raise NotImplementedError


def book_report(*, report: wire.Report, token: str) -> wire.ReportReply:
    """Book an agent's heartbeat, once, and tell it what is newest."""
    raise NotImplementedError


def table_for_agent(*, token: str) -> RoutingEpoch:
    """Give the newest table to an agent that asks for it."""
    raise NotImplementedError
