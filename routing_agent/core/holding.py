"""Late binding: a request waits in its agent while every replica has enough to compute.

What is bound can neither be overtaken nor sent elsewhere. What waits here goes where there is room
first, by fair shares, and is chosen for by what is known then. The room of a replica is
`PoolSettings.bind_ahead_s` of prompt tokens ahead, of which each of several agents may fill its
share with its own: none sees at once what the others send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing_agent.core.replica import Replica

HELD: Final = "held back: each replica has more than {:g} s of prompts ahead"


def has_room(replica: Replica, bound_s: float, agents: int, now: float) -> bool:
    """Say whether a replica may be given one more prompt.

    An idle one always may, so that nothing waits for a share. Where the engine's figures are stale
    an agent goes by its share alone.
    """
    prefill = replica.prefill
    room = bound_s * prefill.tokens_per_s
    own = prefill.backlog_tokens(now) if prefill.queued_tokens else 0.0
    others = replica.tokens_of_others(now)
    if others is not None and own + others > room:
        return False
    return not own or own * agents <= room


def must_wait(usable: Sequence[Replica], bound_s: float, agents: int, now: float) -> bool:
    """Say whether no replica has room."""
    return not any(has_room(replica, bound_s, agents, now) for replica in usable)
