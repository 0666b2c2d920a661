"""When an alert begins, fires and ends. Pure: a reading and what is known so far → what is now.

A limit passed makes an alert pending; after the rule's duration it fires; a value that stays on the
good side of the clearing limit for the rule's time resolves it. Without data nothing moves: what
fires goes on firing and is stale after a while, what is pending waits, and the time without data
counts for neither. One thing without data is known: that nobody asks for anything. Then a figure
of requests ends after the same while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from controlplane.domain import amounts
from controlplane.domain.alert_rules import CLEAR_SHARE, Rule

# As long as the longest window that a figure of requests is judged over, three times.
STALE_AFTER: Final = timedelta(minutes=15)


class State(StrEnum):
    """Where an alert is in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a rule sees of its subject; `value` None: no data, and `missing` says why."""

    subject: str
    pool: str = ""
    value: float | None = None
    threshold: float | None = None  # of rules that go by the pool's own promise
    text: str = ""  # the figures in words
    age_s: float = 0.0
    missing: str = ""
    is_idle: bool = False  # no value because its pool is heard of and has next to no requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """An alert as it is known; times are of what was seen, not of when it is shown."""

    state: State
    since: datetime  # the limit was passed
    fired_at: datetime | None = None
    clear_since: datetime | None = None
    no_data_since: datetime | None = None
    resolved_at: datetime | None = None
    value: float
    threshold: float
    reason: str


def judge(rule: Rule, seen: Reading, known: Tracked | None, *, now: datetime) -> Tracked | None:
    """Give what becomes of an alert; None: there is none."""
    if seen.value is None or math.isnan(seen.value):
        return _without_data(seen, known, now)
    limit = rule.threshold if rule.threshold is not None else seen.threshold
    if limit is None:
        return known
    if known is None:
        return _begun(rule, seen, limit, now) if _passes(rule, seen.value, limit) else None
    return _gone_on(rule, seen, limit, _with_data(known, now), now)


def is_stale(no_data_since: datetime | None, *, now: datetime) -> bool:
    """Say whether what an alert shows is too old to go by."""
    return no_data_since is not None and now - no_data_since >= STALE_AFTER


def _without_data(seen: Reading, known: Tracked | None, now: datetime) -> Tracked | None:
    if known is None:
        return None
    if seen.is_idle and is_stale(known.no_data_since, now=now):
        minutes = int(STALE_AFTER.total_seconds() // 60)
        over = f"{known.reason} Ended: next to no requests for {minutes} min."
        return replace(known, state=State.RESOLVED, resolved_at=now, reason=over)
    if known.no_data_since is not None:
        return known
    reason = f"{known.reason} No data since: {seen.missing}" if seen.missing else known.reason
    return replace(known, no_data_since=now, clear_since=None, reason=reason)


def _with_data(known: Tracked, now: datetime) -> Tracked:
    """Leave the time without data out of how long the limit has been passed."""
    if known.no_data_since is None:
        return known
    gap = now - known.no_data_since
    since = known.since + gap if known.state is State.PENDING else known.since
    return replace(known, since=since, no_data_since=None)


def _begun(rule: Rule, seen: Reading, limit: float, now: datetime) -> Tracked:
    assert seen.value is not None  # noqa: S101 - without a value nothing begins
    begun = Tracked(
        state=State.PENDING,
        since=now,
        value=seen.value,
        threshold=limit,
        reason=told(rule, seen, limit),
    )
    return _fired(rule, begun, now)


def _gone_on(rule: Rule, seen: Reading, limit: float, known: Tracked, now: datetime) -> Tracked:
    assert seen.value is not None  # noqa: S101 - see `judge`
    if _is_clear(rule, seen.value, limit):
        return _clearing(rule, known, now)
    held = replace(known, clear_since=None)
    if not _passes(rule, seen.value, limit):  # between the two limits nothing moves
        return held
    worse = replace(held, value=seen.value, threshold=limit, reason=told(rule, seen, limit))
    return _fired(rule, worse, now)


def _fired(rule: Rule, known: Tracked, now: datetime) -> Tracked:
    if known.state is State.PENDING and now - known.since >= timedelta(seconds=rule.for_s):
        return replace(known, state=State.FIRING, fired_at=now)
    return known


def _clearing(rule: Rule, known: Tracked, now: datetime) -> Tracked:
    if known.state is State.PENDING:
        return replace(known, state=State.RESOLVED, resolved_at=now)
    since = known.clear_since or now
    if now - since >= timedelta(seconds=rule.clear_for_s):
        return replace(known, state=State.RESOLVED, clear_since=since, resolved_at=now)
    return replace(known, clear_since=since)


def _passes(rule: Rule, value: float, limit: float) -> bool:
    return value < limit if rule.is_under else value > limit


def _is_clear(rule: Rule, value: float, limit: float) -> bool:
    clear = rule.clear if rule.clear is not None else limit * CLEAR_SHARE
    return value >= clear if rule.is_under else value <= clear


def told(rule: Rule, seen: Reading, limit: float) -> str:
    """Say why an alert is there, with its figures and their age."""
    assert seen.value is not None  # noqa: S101 - see `judge`
    said = (
        f"{amount(seen.value, rule.unit)}, {rule.comparison} the limit of"
        f" {amount(limit, rule.unit)}."
    )
    details = f" {seen.text}" if seen.text else ""
    age = f" The figures are {seen.age_s:.0f} s old." if seen.age_s >= 1 else ""
    return f"{said}{details}{age}"


def amount(value: float, unit: str) -> str:
    """Show a value in its unit: `1.24 s`, `10 s`, `31 %`, `14.4x`, `1 replica`."""
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{amounts.three(value)} s"
    if unit == "ratio":
        return amounts.percent(value)
    if unit == "x":
        return f"{value:.3g}x" if value < 1000 else f"{value:.0f}x"
    return f"{value:g} {amounts.noun_of(value, unit)}"


# -- silences --------------------------------------------------------------------------------------


def silence_of(alert: Any, silences: Iterable[Any], *, now: datetime) -> Any | None:
    """Give the silence that covers an alert now, if there is one; blank matchers match all."""
    for silence in silences:
        covers = (not silence.rule or silence.rule == alert.rule) and (
            not silence.pool or silence.pool == alert.pool
        )
        if covers and silence.starts_at <= now < silence.ends_at:
            return silence
    return None


# -- webhooks --------------------------------------------------------------------------------------

BACKOFF_FIRST_S = 10.0
BACKOFF_LONGEST_S = 3600.0
ATTEMPTS_AT_MOST = 12  # the last about three hours after the first


def next_try_s(attempts: int) -> float | None:
    """Give how long to wait after so many failed attempts; None: given up."""
    if attempts >= ATTEMPTS_AT_MOST:
        return None
    return min(BACKOFF_FIRST_S * 2.0 ** (attempts - 1), BACKOFF_LONGEST_S)
