"""What deserves an operator's attention, and how a pool is doing: rules with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Severity(StrEnum):
    """How bad a problem is; the order is that of the list."""

    FAILED = "failed"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of the attention list: what, why, since when, and what to do."""

    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    since: datetime | None = None
    target: tuple[str, str] = ("", "")  # kind and name of the page that shows more


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """A pool's replicas by state."""

    wanted: int = 0
    ready: int = 0
    ejected: int = 0
    draining: int = 0
    starting: int = 0
    failed: int = 0

    @property
    def live(self) -> int:
        """Count the replicas that are or should soon be serving."""
        return self.ready + self.ejected + self.draining + self.starting + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something wrong with a pool beside its replicas' states, as a sentence.

    Without words it only weighs: the replicas' states tell the rest.
    """

    text: str = ""
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHealth:
    """A pool's chip and the reason for it."""

    code: str  # one of HEALTH_CODES
    reason: str = ""
    troubles: tuple[Trouble, ...] = ()

    @property
    def rank(self) -> int:
        """Give how well it does: 0 is the worst."""
        return HEALTH_CODES.index(self.code)


HEALTH_CODES = ("down", "failing", "degraded", "loading", "empty", "healthy")  # the worst first


def pool_health(counts: PoolCounts, troubles: Sequence[Trouble] = ()) -> PoolHealth:
    """Judge a pool by its replicas and by what else is wrong with it, alerts above all.

    Every page and the API show this, so a pool that the attention list has a line about is
    healthy nowhere, unless that line is about money only.
    """
    base = replica_health(counts)
    if not troubles:
        return base
    ranked = sorted(troubles, key=lambda t: not t.is_critical)
    code = "degraded"
    if ranked[0].is_critical:
        code = "failing" if counts.ready else "down"
    worst = min(code, base.code, key=HEALTH_CODES.index)
    told = dict.fromkeys((base.reason, *(t.text for t in ranked)))
    return PoolHealth(code=worst, reason=" ".join(filter(None, told)), troubles=tuple(ranked))


def replica_health(counts: PoolCounts) -> PoolHealth:
    """Judge a pool by its replicas alone."""
    if counts.live == 0:
        return PoolHealth(code="empty", reason="It has no replicas: requests to it get 503.")
    expected = max(counts.wanted, counts.live - counts.draining)
    missing = _missing(counts)
    if counts.ready == 0:
        code = "loading" if counts.starting and not counts.ejected and not counts.failed else "down"
        return PoolHealth(code=code, reason=f"No replica is ready{missing}.")
    if counts.ejected or counts.failed or counts.ready + counts.starting < expected:
        return PoolHealth(
            code="degraded", reason=f"{counts.ready} of {expected} replicas ready{missing}."
        )
    if counts.starting:
        return PoolHealth(
            code="loading", reason=f"{counts.ready} of {expected} replicas ready{missing}."
        )
    return PoolHealth(code="healthy")


def _missing(counts: PoolCounts) -> str:
    parts = [
        f"{n} {word}"
        for n, word in (
            (counts.ejected, "ejected"),
            (counts.failed, "failed"),
            (counts.starting, "starting"),
            (counts.draining, "draining"),
        )
        if n
    ]
    return f": {', '.join(parts)}" if parts else ""


def pool_problem(slug: str, counts: PoolCounts, since: datetime | None) -> Problem | None:
    """Turn the state of a pool's replicas into a line of the attention list, if it needs one.

    Alerts have lines of their own.
    """
    health = replica_health(counts)
    if health.code in {"healthy", "loading", "empty"}:
        return None
    return Problem(
        severity=Severity.FAILED if health.code == "down" else Severity.WARNING,
        what=f"Pool {slug} is {health.code}",
        why=health.reason,
        remedy="Look at its replicas: each states its last reason.",
        since=since,
        target=("pool", slug),
    )


def in_order(problems: list[Problem]) -> list[Problem]:
    """Put the worst first, then the oldest."""
    ranks = list(Severity)
    return sorted(
        problems,
        key=lambda p: (
            ranks.index(p.severity),
            p.since is None,
            p.since.timestamp() if p.since else 0.0,
            p.what,
        ),
    )
