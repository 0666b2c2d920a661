"""Which LoRA adapters one replica holds: what its engine was seen to list, and what is under way.

An adapter is resident where the table wants it and the engine lists it: one that is about to be
unloaded takes nothing new, one that was only asked for takes nothing yet. How long the latter will
take is estimated, by the loads that were seen before: a request may wait for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from routing_agent.core.engine_traits import adapter_model
from routing_agent.wire import SERVED_NAME_DIGITS, AdapterStage, AdapterState, Endpoint

# For so long after adapters were found missing their replica is asked for its list every second.
MISSING_IS_NEWS_S: Final = 60.0
MESSAGE_LENGTH: Final = 500
# How long a load takes while none was seen: 0.5 to 0.6 s were measured for small ones on a near
# disk, and an engine's list is looked at each second.
PRIOR_LOAD_S: Final = 1.5
LEAST_LOAD_S: Final = 0.1
LEARNING_RATE: Final = 0.3  # of each load that is seen
LONGEST_LOAD_S: Final = 60.0  # what takes longer was held up, and teaches nothing
_OURS: Final = re.compile(rf"[A-Za-z0-9._-]+\.[0-9a-f]{{{SERVED_NAME_DIGITS}}}")


def is_ours(served_name: str) -> bool:
    """Say whether an adapter was loaded for a table, and not by somebody else."""
    return _OURS.fullmatch(served_name) is not None


class Progress(msgspec.Struct):
    """How far the agent on a replica's node is with one adapter; `since` is monotonic seconds."""

    stage: AdapterStage
    since: float
    message: str = ""
    attempts: int = 0  # loads that failed in a row


class Residence:
    """The adapters of one replica as this agent sees them."""

    __slots__ = ("_can_be_asked", "listed", "load_s", "missing", "missing_since", "resident",
                 "running", "states", "wanted")  # fmt: skip

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()  # by the table
        self.listed: tuple[str, ...] = ()  # by the engine, at our last look
        self.resident: frozenset[str] = frozenset()  # what may be sent there
        self.running: Counter[str] = Counter()  # requests of ours under way
        self.states: dict[str, Progress] = {}  # only the agent on its node has any
        self.missing_since: float | None = None
        self.missing: dict[str, float] = {}  # wanted and not resident, since when
        self.load_s = PRIOR_LOAD_S  # from being missing to being listed, as seen lately
        self._can_be_asked = False

    def want(self, endpoint: Endpoint, now: float) -> None:
        """Take over what a table wants a replica to hold."""
        before, self.wanted = self.wanted, frozenset(endpoint.adapters)
        self._can_be_asked = adapter_model(endpoint.engine, "", "") is not None
        self._settle(now, is_new=before != self.wanted)

    def note_listed(self, names: Iterable[str], now: float) -> None:
        """Take over the adapters that the engine lists."""
        self.listed = tuple(dict.fromkeys(names))
        self._settle(now)

    def note_lost(self, name: str, now: float) -> None:
        """Note that the engine does not know an adapter that it was seen to list."""
        self.note_listed((one for one in self.listed if one != name), now)

    def note_restart(self, now: float) -> None:
        """Forget what another process had loaded."""
        self.listed = ()
        self._settle(now, is_new=True)

    def note_well(self, now: float) -> None:
        """Note that the engine takes calls again: what is missing is loaded from now on."""
        self.missing = dict.fromkeys(self.missing, now)

    def load_wait_s(self, name: str, now: float) -> float | None:
        """Give in how many seconds a missing adapter is expected; None: it is not on its way.

        What has taken longer than usual is expected to take as long again.
        """
        since = self.missing.get(name)
        if since is None or not self._can_be_asked:
            return None
        state = self.states.get(name)
        if state is not None and state.stage == "failed":
            return None
        elapsed_s = max(now - since, 0.0)
        left_s = self.load_s - elapsed_s if elapsed_s < self.load_s else elapsed_s
        return max(left_s, LEAST_LOAD_S)

    def may_miss(self, now: float) -> bool:
        """Say whether an adapter that is missing may come any second."""
        since = self.missing_since
        return since is not None and now - since < MISSING_IS_NEWS_S

    @property
    def ours(self) -> tuple[str, ...]:
        """The listed adapters that were loaded for a table."""
        return tuple(name for name in self.listed if name in self.wanted or is_ours(name))

    def note_stage(
        self, name: str, stage: AdapterStage, now: float, *, message: str = "", attempts: int = 0
    ) -> None:
        """Note how far this agent is with an adapter; a stage that goes on keeps its time."""
        before = self.states.get(name)
        since = before.since if before is not None and before.stage == stage else now
        self.states[name] = Progress(stage, since, message[:MESSAGE_LENGTH], attempts)

    def report(self, now: float) -> tuple[AdapterState, ...]:
        """Tell the control plane how far this agent is."""
        return tuple(
            AdapterState(
                served_name=name,
                state=one.stage,
                message=one.message,
                for_s=max(now - one.since, 0.0),
                attempts=one.attempts,
            )
            for name, one in self.states.items()
        )

    def begin(self, name: str) -> None:
        """Count a request that is sent."""
        self.running[name] += 1

    def end(self, name: str) -> None:
        """Count a request that ended."""
        self.running[name] -= 1
        if self.running[name] <= 0:
            del self.running[name]

    def _settle(self, now: float, *, is_new: bool = False) -> None:
        self.resident = self.wanted & frozenset(self.listed) if self._can_be_asked else frozenset()
        self._count_missing(now, is_new=is_new)
        if self.resident == self.wanted:
            self.missing_since = None
        elif self.missing_since is None or is_new:
            self.missing_since = now

    def _count_missing(self, now: float, *, is_new: bool) -> None:
        """Keep since when each is missing, and learn from those that came."""
        for name, since in self.missing.items():
            if name in self.resident and now - since <= LONGEST_LOAD_S:
                self.load_s += LEARNING_RATE * (max(now - since, 0.0) - self.load_s)
        before = {} if is_new and not self.listed else self.missing
        self.missing = {name: before.get(name, now) for name in self.wanted - self.resident}
