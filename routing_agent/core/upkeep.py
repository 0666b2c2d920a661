"""What an agent does about one adapter on one replica of its own node.

Level, not edge: what is wanted is held against what the engine lists, again and again. So a call
that is lost or repeated, a restarted engine or agent, and a control plane that is away need no case
of their own.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from routing_agent.core.replica import Replica

Step = Literal["keep", "load", "unload", "wait", "forget"]

# An engine or a control plane that is away comes back within seconds, mostly; an adapter that the
# engine refused gets better only with another engine, whose start is noticed and tried at once.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
REJECTED_PAUSE_S: Final = 300.0
LONGEST_REJECTED_PAUSE_S: Final = 3600.0
JITTER_RATIO: Final = 0.2


class PackageUnavailable(Exception):
    """An adapter's files are not on this node now; the message says why."""


class Attempts(msgspec.Struct):
    """What is remembered of one adapter on one replica."""

    failures: int = 0  # in a row
    again_at: float = 0.0  # monotonic
    unwanted_since: float | None = None
    process: tuple[float | None, float | None] = (None, None)  # the one that failed

    def note_failure(self, now: float, *, rejected: bool, chance: float) -> float:
        """Put the next try off and give for how long; `chance` is from 0 to 1."""
        self.failures += 1
        pause_s = pause_after(self.failures, rejected=rejected)
        pause_s *= 1 + JITTER_RATIO * (2 * chance - 1)
        self.again_at = now + pause_s
        return pause_s

    def note_success(self) -> None:
        """Forget earlier failures."""
        self.failures, self.again_at = 0, 0.0


class Verdict(msgspec.Struct, frozen=True):
    """The next step, and why."""

    step: Step
    reason: str = ""


def pause_after(failures: int, *, rejected: bool) -> float:
    """Give the pause after so many failures in a row: doubling, up to a limit."""
    first, longest = (
        (REJECTED_PAUSE_S, LONGEST_REJECTED_PAUSE_S)
        if rejected
        else (FIRST_PAUSE_S, LONGEST_PAUSE_S)
    )
    return float(min(first * 2 ** min(failures - 1, 20), longest))


def next_step(replica: Replica, name: str, attempts: Attempts, now: float) -> Verdict:
    """Say what to do about an adapter on a replica."""
    is_wanted, is_listed = name in replica.adapters.wanted, name in replica.adapters.listed
    if is_wanted == is_listed:
        return Verdict("keep" if is_wanted else "forget")
    objection = _objection(replica, is_wanted=is_wanted)
    if objection:
        return Verdict("wait", objection)
    if attempts.again_at > now:
        return Verdict("wait", "tried lately")
    if is_wanted:
        return Verdict("load")
    waited_s = now - (now if attempts.unwanted_since is None else attempts.unwanted_since)
    if waited_s < replica.settings.drain_limit_s and is_in_use(replica, name):
        return Verdict("wait", "requests with it still run")
    return Verdict("unload")


def is_in_use(replica: Replica, name: str) -> bool:
    """Say whether requests for an adapter run on a replica: ours, or by its metrics anybody's.

    vLLM's gauge of running adapters keeps its last value when nothing runs, so the count of
    requests is asked too.
    """
    if replica.adapters.running[name]:
        return True
    figures = replica.figures
    if replica.scrape_error or not (figures.running or figures.waiting):
        return False
    return name in (figures.running_adapters or ())


def _objection(replica: Replica, *, is_wanted: bool) -> str:
    """Say why a replica cannot be asked now."""
    if is_wanted and replica.endpoint.state == "draining":
        return "it is draining"
    if replica.health != "healthy":
        return f"it is {replica.health}: {replica.health_reason}"
    return ""
