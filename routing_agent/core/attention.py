"""How long our own event loop did not look: time that must not count against anybody else.

A loop that is held up, by a thousand large bodies or by a machine that gives it no CPU, finds every
limit of time passed when it looks again, though answers may have lain in its sockets all the while.
"""

from __future__ import annotations

# How often the loop is expected to look; limits are seconds, so a tenth is fine enough.
TICK_S = 0.1
# A tick this late is still in time: timers are coarse.
LATE_S = TICK_S / 2


def next_tick_s(now: float, tick_s: float = TICK_S) -> float:
    """Give the seconds until the next tick, on a grid that all who tick in this process share.

    A process that has nothing else to do is thus woken once for all of them. At least a quarter of
    a tick, so that a timer that goes off a little early does not make two of one.
    """
    wait_s = tick_s - now % tick_s
    return wait_s if wait_s > tick_s / 4 else wait_s + tick_s


class Attention:
    """Counts what a ticking loop lost; times are monotonic seconds."""

    __slots__ = ("_looked_at", "_lost_s")

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._lost_s = 0.0

    def looked(self, now: float) -> float:
        """Note a tick; give the seconds lost since the one before (0 if it came in time)."""
        lost_s = self._present_s(now)
        self._lost_s += lost_s
        self._looked_at = now
        return lost_s

    def ended(self) -> None:
        """Note that there will be no more ticks: nothing counts as lost from now on."""
        self._looked_at = None

    def lost_s(self, now: float) -> float:
        """Give all seconds lost so far, those since a tick that is overdue now included."""
        return self._lost_s + self._present_s(now)

    def _present_s(self, now: float) -> float:
        if self._looked_at is None:
            return 0.0
        late_s = now - self._looked_at - TICK_S
        return late_s if late_s > LATE_S else 0.0
