"""Engines known only by the OpenAI API they speak: probed by /v1/models, never scraped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from routing_agent.engine.base import Driver


class OpenAi(Driver):
    """Any server with /v1/models or /health; its load is what this agent itself sent.

    `transformers serve` is one: its list of models can fail while it serves, hence /health.
    """

    untold: ClassVar[Mapping[str, str]] = {
        "running": "a server known only by the OpenAI API is not scraped",
    }
