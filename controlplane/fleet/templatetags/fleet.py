"""What pages of apps below the fleet show of it."""

from __future__ import annotations

from django import template

from controlplane.fleet.models import Agent

register = template.Library()


@register.simple_tag
def agent_nodes() -> dict[str, str]:
    """Give the name of each agent's node by the agent's public id: people know the node."""
    return dict(Agent.objects.values_list("public_id", "node__name"))
