"""What routing does: register agents, book reports, publish, deliver, reconcile, adopt."""

from controlplane.routing.services.agents import (
    authenticate,
    book_report,
    register_agent,
    table_for_agent,
)
from controlplane.routing.services.delivery import deliver_table, retry_delivery
from controlplane.routing.services.loops import reconcile_replicas, sweep
from controlplane.routing.services.publishing import adopt, publish_if_behind, republish

__all__ = [
    "adopt",
    "authenticate",
    "book_report",
    "deliver_table",
    "publish_if_behind",
    "reconcile_replicas",
    "register_agent",
    "republish",
    "retry_delivery",
    "sweep",
    "table_for_agent",
]
