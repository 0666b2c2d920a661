"""Which replica each session was last sent to, for as long as a pool remembers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

# About 20 MB. Beyond it the longest idle are forgotten before their time; the hash ring and the
# profiles still know where they belong.
MOST_SESSIONS: Final = 100_000


class Sessions:
    """Replica ids by session, the longest idle first. Times are monotonic seconds."""

    __slots__ = ("_last", "moved_total")

    def __init__(self) -> None:
        self._last: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self.moved_total = 0  # how often a session went elsewhere than before

    def __len__(self) -> int:
        return len(self._last)

    def home(self, session: int, since: float) -> str:
        """Tell where a session was sent last, or "" if that was before `since` or never."""
        last = self._last.get(session)
        return last[0] if last is not None and last[1] >= since else ""

    def note(self, session: int, replica: str, *, now: float, lifetime_s: float) -> None:
        """Note where a session was sent now; a few of those idle too long are dropped."""
        known = self._last
        before = known.pop(session, None)
        known[session] = (replica, now)
        if before is not None and before[0] != replica and before[1] >= now - lifetime_s:
            self.moved_total += 1
        for _ in range(2):  # two leave for each that comes: it never falls behind
            oldest = next(iter(known))
            if known[oldest][1] >= now - lifetime_s and len(known) <= MOST_SESSIONS:
                break
            del known[oldest]
