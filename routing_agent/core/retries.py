"""What may be tried again, where, after which pause, and how much of it a pool bears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from routing_agent.core.chance import Chance
from routing_agent.core.engine_errors import EngineError, Kind
from routing_agent.wire import PoolSettings

Failure = Literal[
    "connect",  # refused, unreachable or no connection within the limit
    "exhausted",  # this agent itself had no socket left to connect with
    "broken",  # the connection ended before the first byte of an answer
    "engine_error",  # 500, 502, 504, or an error event in place of the first token
    "overloaded",  # 429 or 503: the engine is busy, not broken
    "stopping",  # it is shutting down in order and takes nothing new
    "not_resident",  # the engine does not have the adapter that it was seen to list
    "refused",  # the request is at fault, though the status or a 200 before it says otherwise
    "too_slow",  # no first token, or no further one, within the limit
    "unsure",  # a small model's answer that its cascade does not trust
    "hung",  # its engine was found to compute nothing, before an answer had begun
    "lost",  # broke after the first byte went to the client
]

# Busy is not broken: overload never counts against a replica.
COUNTS_AGAINST_REPLICA: Final[dict[Failure, bool]] = {
    "connect": True,
    "exhausted": False,
    "broken": True,
    "engine_error": True,
    "overloaded": False,
    "stopping": False,  # that answer alone keeps new requests away: `Replica.note_doubt`
    "not_resident": False,
    "refused": False,
    "too_slow": True,
    "hung": False,  # its health keeps it out already, and lets it in again
    "lost": True,
    "unsure": False,
}
# A request that has waited its whole limit, or whose answer has begun, is not tried again.
MAY_BE_RETRIED: Final[dict[Failure, bool]] = {
    "connect": True,
    "exhausted": True,
    "broken": True,
    "engine_error": True,
    "overloaded": True,
    "stopping": True,
    "not_resident": True,
    "refused": False,
    "too_slow": False,
    "hung": True,
    "lost": False,
    "unsure": False,
}
FAILURE_OF_STATUS: Final[dict[int, Failure]] = {
    401: "engine_error",  # the engine refuses this agent's key; the client's was good
    429: "overloaded",
    500: "engine_error",
    502: "engine_error",
    503: "overloaded",
    504: "engine_error",
}
# Where the words of an answer tell more than its status.
FAILURE_OF_KIND: Final[dict[Kind, Failure]] = {
    "stopping": "stopping",
    "loading": "overloaded",
    "dead": "engine_error",
    "invalid": "refused",
    "not_found": "refused",
}


def failure_of(error: EngineError) -> Failure:
    """Give what an engine's error means for the attempt it ends."""
    told = FAILURE_OF_KIND.get(error.kind)
    return told if told is not None else FAILURE_OF_STATUS.get(error.code, "engine_error")


# A pool that sees few requests still gets a few retries: 10 a second as in Finagle's RetryBudget.
BUDGET_FLOOR_PER_S: Final = 10.0
BUDGET_CEILING: Final = 100.0
BUDGET_START: Final = 30.0


class RetryBudget:
    """A pool's retries: each request earns `ratio` of one, and a small floor comes with time."""

    __slots__ = ("_at", "balance", "ratio")

    def __init__(self, ratio: float, now: float) -> None:
        self.ratio = ratio
        self.balance = BUDGET_START
        self._at = now

    def earn(self) -> None:
        """Note a first attempt."""
        if self.balance < BUDGET_CEILING:
            self.balance += self.ratio

    def has_one(self, now: float) -> bool:
        """Say whether there is a retry left."""
        if self.balance < BUDGET_START:
            grown = self.balance + (now - self._at) * BUDGET_FLOOR_PER_S
            self.balance = min(grown, BUDGET_START)
        self._at = now
        return self.balance >= 1.0

    def spend(self, now: float) -> bool:
        """Take one retry out; false if there is none left."""
        if not self.has_one(now):
            return False
        self.balance -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """Whether to try again, after which pause, and why (not)."""

    retry: bool
    reason: str
    delay_s: float = 0.0
    same_replica: bool = False


def judge_retry(
    failure: Failure,
    *,
    attempts: int,
    others: int,
    settings: PoolSettings,
    budget: RetryBudget,
    clock_and_chance: tuple[float, Chance],
) -> RetryVerdict:
    """Judge a failed attempt. `attempts` were made; `others` usable replicas are untried.

    The same replica is tried again only if it is the pool's only one, and never when it said it is
    busy or stopping: then its own answer, with its Retry-After, is the best one.
    """
    now, chance = clock_and_chance
    if not MAY_BE_RETRIED[failure]:
        return RetryVerdict(retry=False, reason=f"{failure} is never retried")
    if attempts > settings.max_retries:
        return RetryVerdict(retry=False, reason=f"{attempts} attempts made")
    same = others == 0
    if same and failure in ("overloaded", "stopping", "not_resident"):
        return RetryVerdict(retry=False, reason="no other replica is free, or has it")
    if not budget.spend(now):
        return RetryVerdict(retry=False, reason="the pool's retry budget is used up")
    delay_s = backoff_s(attempts, settings=settings, chance=chance)
    said = failure.replace("_", " ")
    return RetryVerdict(retry=True, reason=f"after {said}", delay_s=delay_s, same_replica=same)


# The pause of a request that an engine refused without saying for how long.
UNTOLD_PAUSE_S: Final = 1.0


def refused_for_s(retry_after: bytes | None) -> float:
    """Give how long an engine that is full wants to be left alone with a request: its Retry-After.

    One that is no number of seconds (a date) counts as untold: clocks differ.
    """
    if retry_after is None or not retry_after.strip().isdigit():
        return UNTOLD_PAUSE_S
    return max(float(retry_after), UNTOLD_PAUSE_S)


@dataclass(frozen=True, slots=True)
class HungVerdict:
    """What becomes of a request whose engine hangs, and why."""

    failure: Failure | None  # None: it stays where it is for now
    reason: str


def judge_hung(
    waited_s: float,
    *,
    tells_progress: bool,
    others: int,
    settings: PoolSettings,
    budget: RetryBudget,
    now: float,
) -> HungVerdict:
    """Judge a request that has waited in vain so long at an engine that was found hung; `others`
    untried replicas may take it.

    An engine that never tells how far it is may be one that answers no probe while it computes: it
    gets a TTFT limit. So does one whose requests nobody else can take just now.
    """
    is_late = waited_s >= settings.ttft_limit_s
    if not tells_progress and not is_late:
        return HungVerdict(None, "its engine may only be busy: it tells no progress")
    if others and budget.has_one(now):
        return HungVerdict("hung", "another replica may serve it")
    if not is_late:
        return HungVerdict(None, "no other replica may serve it now")
    return HungVerdict("too_slow", "no other replica may serve it, and its TTFT limit has passed")


def backoff_s(attempts: int, *, settings: PoolSettings, chance: Chance) -> float:
    """Give the pause before the next attempt: doubling, with jitter both ways."""
    spread = 1.0 + settings.retry_jitter * (2.0 * chance.random() - 1.0)
    return settings.retry_backoff_s * 2.0 ** (attempts - 1) * spread
