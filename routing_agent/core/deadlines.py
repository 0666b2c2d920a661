"""Time limits of a request. One number is checked by a coarse tick: when the next limit ends."""

from __future__ import annotations

from typing import Final, Literal

from routing_agent.wire import PoolSettings

Phase = Literal["queued", "pausing", "connecting", "prefill", "decode"]
Limit = Literal["queue", "connect", "ttft", "stall", "end_to_end"]

LIMIT_OF_PHASE: Final[dict[Phase, Limit | None]] = {
    "queued": "queue",
    "pausing": None,  # between two attempts
    "connecting": "connect",
    "prefill": "ttft",
    "decode": "stall",
}


def limit_s(limit: Limit, settings: PoolSettings) -> float:
    """Give a limit's length."""
    if limit == "queue":
        return settings.queue_deadline_s
    if limit == "connect":
        return settings.connect_limit_s
    if limit == "ttft":
        return settings.ttft_limit_s
    if limit == "stall":
        return settings.stall_limit_s
    return settings.end_to_end_limit_s


def next_deadline(
    phase: Phase, *, phase_began: float, received: float, settings: PoolSettings
) -> tuple[float, Limit]:
    """Give when the next limit of a request ends, and which one it is."""
    end = received + settings.end_to_end_limit_s
    limit = LIMIT_OF_PHASE[phase]
    if limit is None:
        return end, "end_to_end"
    at = phase_began + limit_s(limit, settings)
    return (at, limit) if at < end else (end, "end_to_end")
