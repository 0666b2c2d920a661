"""Nodes: which agent is silent or behind, and what its GPUs do."""

from __future__ import annotations

from typing import Any, ClassVar

from controlplane.console import preferences
from controlplane.console.listing import Listing, Sorting
from controlplane.console.mixins import Page
from controlplane.fleet import rows, selectors
from controlplane.fleet.filters import NodeFilter
from controlplane.fleet.models import Agent
from controlplane.fleet.views import charts


def newest_epoch() -> int:
    """Give the newest epoch any agent runs; routing, which publishes them, is above this app."""
    return max(Agent.objects.values_list("applied_epoch", flat=True), default=0)


class NodeList(Listing):
    """All nodes, silent and late agents first."""

    template_name = "fleet/nodes.html"
    fragment_name = "fleet/_nodes.html"
    nav_name = "nodes"
    title = "Nodes"
    api_path = "/api/v1/nodes/"
    filter_class = NodeFilter
    row_sorts: ClassVar[dict[str, str]] = {
        "name": "node.name",
        "status": "rank",
        "seen_at": "seen_at",
        "applied_epoch": "agent.applied_epoch",
        "table_source": "agent.table_source",
        "agent_version": "agent.agent_version",
        "replica_count": "node.replica_count",
    }
    csv_columns: ClassVar[dict[str, str]] = {
        "node": "node.name",
        "zone": "node.zone",
        "status": "status",
        "epoch": "agent.applied_epoch",
        "behind_by": "behind_by",
        "agent_version": "agent.agent_version",
        "gpus": "node.gpus",
    }

    def queryset(self) -> Any:
        """Give all nodes with their agents."""
        return selectors.nodes()

    def rows(self, found: Any) -> list[rows.NodeRow]:
        """Add what the agents last said."""
        return rows.node_rows(found, rows.reports(), newest_epoch=newest_epoch())


class NodePage(Page):
    """One node: its agent, GPUs and replicas."""

    template_name = "fleet/node.html"
    fragment_name = "fleet/_node.html"
    nav_name = "nodes"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the node, its replicas and, for a whole page, its GPU charts."""
        node = selectors.node(kwargs["name"])
        reports = rows.reports()
        sorting = Sorting.of(self.request.GET, rows.REPLICA_SORTS)
        row = rows.node_rows([node], reports, newest_epoch=newest_epoch())[0]
        context = {
            "title": node.name,
            "api_path": f"/api/v1/nodes/{node.name}/",
            "row": row,
            "sorting": sorting,
            "replicas": sorting.rows(
                rows.replica_rows(selectors.replicas().filter(node=node), reports),
                rows.REPLICA_SORTS,
            ),
            "reports": reports,
            "page_has_window": True,
        }
        if row.agent is not None and not getattr(self.request, "htmx", False):
            chosen = preferences.read(self.request).window
            context["charts"] = charts.node_charts(node, chosen)
        return super().get_context_data(**kwargs) | context
