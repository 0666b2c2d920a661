"""Engines known only by the OpenAI API they speak: probed by /v1/models, never scraped."""

from __future__ import annotations

from routing_agent.engine.base import Driver


class OpenAi(Driver):
    """Any server with /v1/models; its load is what this agent itself sent."""
