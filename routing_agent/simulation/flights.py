"""One request on its way through a replay: where it was sent, and when what happened to it."""

from __future__ import annotations

from dataclasses import dataclass

from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import Placement
from routing_agent.core.replica import Replica
from routing_agent.simulation.traces.model import TraceRequest


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """What became of one request; times are seconds since the replay began."""

    number: int
    request: TraceRequest
    agent: int
    charged_tokens: int
    reason: str = ""  # why it went where it went, or why nowhere
    engine: int | None = None  # None: no replica took it
    replica: Replica | None = None  # as its agent knows it
    asked: RouteRequest | None = None  # what its agent chose by
    placement: Placement | None = None  # what its agent charged
    expected_cached_tokens: int = 0
    cached_tokens: int = 0
    first_token_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.request.at_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between its tokens; None of fewer than two."""
        if self.first_token_at is None or self.ended_at is None or self.request.output_tokens < 2:
            return None
        return (self.ended_at - self.first_token_at) / (self.request.output_tokens - 1)

    @property
    def expected_uncached_tokens(self) -> int:
        """Prompt tokens it seemed to need computed when it was sent."""
        return self.request.prompt_tokens - self.expected_cached_tokens

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.request.prompt_tokens - self.cached_tokens
