"""What a replica's engine tells of its prefix cache, beside what is believed of it."""

from __future__ import annotations

from routing_agent.core.kv_view import KvView
from routing_agent.core.prefill import Prefill
from routing_agent.core.profile import PrefixProfile
from routing_agent.wire import PrefixReport


class CacheNotes:
    """By its answers' usage figures, and by its events where those are followed."""

    __slots__ = ("events", "expected_tokens_total", "tells_cached", "view")

    def __init__(self) -> None:
        self.tells_cached = False  # whether answers say how much of a prompt was cached
        self.expected_tokens_total = 0  # by the profile, of prompts the engine told of itself
        self.view: KvView | None = None
        self.events = ""  # how far they are followed, in words; "" = not at all

    def report(self, profile: PrefixProfile, prefill: Prefill, now: float) -> PrefixReport:
        """Describe this, and what is believed, to the control plane."""
        return PrefixReport(
            blocks=len(profile),
            capacity_blocks=profile.capacity_blocks,
            prefill_tokens_per_s=round(prefill.tokens_per_s, 1),
            waiting_prompts=prefill.waiting,
            backlog_tokens=max(round(prefill.backlog_tokens(now)), 0),
            expected_cached_tokens_total=self.expected_tokens_total,
            kv_events=self.events,
        )
