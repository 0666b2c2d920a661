"""Circuit breaker: takes a replica out after repeated failures and lets it back in gently.

Only failures of the engine count. A client's mistake (4xx) and an engine that says it is busy
(429, 503) are no failures: see `retries.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, Literal

from routing_agent.wire import PoolSettings

State = Literal["closed", "open", "half_open"]
Event = Literal["tripped", "cooled", "trial_failed", "recovered"]

MOVES: Final[Mapping[State, Mapping[Event, State]]] = {
    "closed": {"tripped": "open"},
    "open": {"cooled": "half_open"},
    "half_open": {"trial_failed": "open", "recovered": "closed"},
}


class Breaker:
    """The breaker of one replica; times are monotonic seconds."""

    __slots__ = ("_failures", "good", "opened_at", "settings", "state", "trial_running")

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.state: State = "closed"
        self.opened_at = 0.0
        self.trial_running = False
        self.good = 0
        self._failures: deque[float] = deque(maxlen=settings.breaker_failures)

    def adopt(self, settings: PoolSettings) -> None:
        """Obey new settings from now on, keeping what is known."""
        if settings.breaker_failures != self.settings.breaker_failures:
            self._failures = deque(self._failures, maxlen=settings.breaker_failures)
        self.settings = settings

    def admits(self, now: float) -> bool:
        """Say whether a request may be sent: always if closed, else one trial after the pause."""
        if self.state == "closed":
            return True
        if self.state == "open":
            return now - self.opened_at >= self.settings.breaker_open_s
        return not self.trial_running

    def began(self, now: float) -> bool:
        """Note that a request was sent; true if it is a trial."""
        if self.state == "closed":
            return False
        if self.state == "open" and self.admits(now):
            self._move("cooled")
            self.good = 0
        self.trial_running = True
        return True

    def succeeded(self, *, trial: bool) -> bool:
        """Note a good answer; true if that closed the breaker."""
        if self.state == "closed":
            return False
        if not trial or self.state == "open":
            return False
        self.trial_running = False
        self.good += 1
        if self.good < self.settings.breaker_good_to_close:
            return False
        self._move("recovered")
        self._failures.clear()
        return True

    def failed(self, now: float, *, trial: bool, may_open: bool) -> bool:
        """Note a failure; true if that opened the breaker. `may_open` is the pool's ceiling."""
        if trial and self.state == "half_open":
            self.trial_running = False
            self._move("trial_failed")
            self.opened_at = now
            return True
        if self.state != "closed":
            return False
        self._failures.append(now)
        if not may_open or not self._is_over_limit(now):
            return False
        self._move("tripped")
        self.opened_at = now
        return True

    def abandoned(self, *, trial: bool) -> None:
        """Note that a request ended without a verdict on the engine, as when its client left."""
        if trial and self.state == "half_open":
            self.trial_running = False

    def renewed(self) -> None:
        """Let a trial in at once: the engine was restarted, or answers its probes again."""
        if self.state == "open":
            self._move("cooled")
            self.good = 0
            self.trial_running = False
        self._failures.clear()

    def _is_over_limit(self, now: float) -> bool:
        limit = self.settings.breaker_failures
        oldest = self._failures[0]
        return len(self._failures) == limit and now - oldest <= self.settings.breaker_window_s

    def _move(self, event: Event) -> None:
        self.state = MOVES[self.state][event]


def may_eject(*, ejected: int, replicas: int, ceiling_ratio: float) -> bool:
    """Say whether one more of a pool's replicas may be taken out without passing the ceiling.

    A pool's last replica therefore never is: a doubtful answer beats none.
    """
    return ejected + 1 <= replicas * ceiling_ratio
