"""When an undelivered table is tried again."""

from __future__ import annotations

from datetime import datetime, timedelta

FIRST_PAUSE_S = 5.0
DOUBLINGS = 6  # up to 320 s: an agent that comes back asks by itself within two seconds anyway


def is_due(*, attempts: int, first_tried_at: datetime | None, is_live: bool, now: datetime) -> bool:
    """Say whether to push again: at once to an agent we hear, ever more rarely to a silent one."""
    if is_live or first_tried_at is None:
        return True
    pause_s = FIRST_PAUSE_S * (2.0 ** min(attempts, DOUBLINGS))
    return now - first_tried_at >= timedelta(seconds=pause_s)
