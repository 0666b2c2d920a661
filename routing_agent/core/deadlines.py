"""Time limits of a request. One number is checked by a coarse tick: when the next limit ends."""

from __future__ import annotations

from typing import Final, Literal

from routing_agent.wire import PoolSettings

Phase = Literal["queued", "pausing", "connecting", "prefill", "decode"]
Limit = Literal["queue", "connect", "ttft", "stall", "end_to_end", "client"]

LIMIT_OF_PHASE: Final[dict[Phase, Limit | None]] = {
    "queued": "queue",
    "pausing": None,  # between two attempts
    "connecting": "connect",
    "prefill": "ttft",
    "decode": "stall",
}


# Limits that hold others to their pace: time in which our own loop did not look is not theirs. What
# a client was promised, the wait in the queue and the end to end, is real time.
OTHERS_PACE: Final[frozenset[Limit]] = frozenset({"connect", "ttft", "stall", "client"})

# The slowest generation that is believed: a plain answer shows nothing before its last token.
SLOWEST_TOKEN_S: Final = 0.1


def first_byte_limit_s(
    settings: PoolSettings, *, generates_unseen: bool, max_tokens: int | None
) -> float:
    """Give how long an engine may take to its first byte.

    That is the TTFT limit, unless the answer is generated and comes as a whole: then the time for
    its tokens is added, and without a token limit only the end-to-end limit holds.
    """
    if not generates_unseen:
        return settings.ttft_limit_s
    if max_tokens is None:
        return settings.end_to_end_limit_s
    return settings.ttft_limit_s + max_tokens * SLOWEST_TOKEN_S


def limit_s(limit: Limit, settings: PoolSettings) -> float:
    """Give the length of a phase's limit."""
    if limit == "queue":
        return settings.queue_deadline_s
    if limit == "connect":
        return settings.connect_limit_s
    if limit == "ttft":
        return settings.ttft_limit_s
    return settings.stall_limit_s


def next_deadline(
    phase: Phase, *, phase_began: float, end_at: float, settings: PoolSettings
) -> tuple[float, Limit]:
    """Give when the next limit of a request ends, and which one it is."""
    limit = LIMIT_OF_PHASE[phase]
    if limit is None:
        return end_at, "end_to_end"
    at = phase_began + limit_s(limit, settings)
    return (at, limit) if at < end_at else (end_at, "end_to_end")
