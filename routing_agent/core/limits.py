"""Per-tenant admission: concurrent requests, requests and tokens a minute.

All three are checked and taken in one synchronous step, so concurrent requests cannot jump over a
limit. Buckets hold one minute's worth and refill evenly. Limits that hold over several agents are
checked against this agent's share of them: see `core.shares`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_agent.core.shares import LimitName, Share
from routing_agent.wire import TenantLimits

MINUTE_S: Final = 60.0
# When a running request ends is anybody's guess; a second is the shortest Retry-After there is.
CONCURRENCY_RETRY_S: Final = 1.0
UNREACHABLE_RETRY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request may run; if not, which limit it met and when to come back."""

    admitted: bool
    limit: LimitName | None = None
    limit_value: int = 0
    retry_after_s: float = 0.0
    reason: str = ""
    may_lease: bool = False  # a lease call may bring what is missing


ADMITTED: Final = Admission(admitted=True)


class Bucket:
    """A token bucket that holds one minute's worth."""

    __slots__ = ("_at", "_per_s", "capacity", "level")

    def __init__(self, per_minute: int, now: float) -> None:
        self.capacity = float(per_minute)
        self.level = self.capacity
        self._per_s = per_minute / MINUTE_S
        self._at = now

    def refill(self, now: float) -> float:
        """Bring the level up to `now` and give it."""
        if now > self._at:
            self.level = min(self.level + (now - self._at) * self._per_s, self.capacity)
            self._at = now
        return self.level

    def figures(self) -> tuple[float, float]:
        """Give the level and its time, for another process to take over."""
        return self.level, self._at

    def take_over(self, level: float, at: float) -> None:
        """Go on from what another process has left."""
        self.level, self._at = level, at

    def wait_s(self, amount: float) -> float:
        """Say how long until `amount` is there; a minute if it never will be."""
        if amount > self.capacity or not self._per_s:
            return MINUTE_S
        return max((amount - self.level) / self._per_s, 0.0)

    def resized(self, per_minute: int, now: float) -> Bucket:
        """Give a bucket of another size with the same share filled."""
        bucket = Bucket(per_minute, now)
        share = self.refill(now) / self.capacity if self.capacity else 1.0
        bucket.level = min(share, 1.0) * bucket.capacity
        return bucket


class TenantGate:
    """One tenant's limits and what is used of them."""

    __slots__ = ("limits", "requests", "running", "share", "tokens")

    def __init__(self, limits: TenantLimits, now: float) -> None:
        self.running = 0
        self.share = Share(now) if limits.leased else None
        self.limits = limits
        self.requests = _bucket(None, limits.requests_per_minute, now)
        self.tokens = _bucket(None, limits.tokens_per_minute, now)

    def adopt(self, limits: TenantLimits, now: float) -> None:
        """Obey new limits, keeping what is used."""
        old, self.limits = self.limits, limits
        if old.leased != limits.leased:
            self.share = Share(now) if limits.leased else None
        if old.requests_per_minute != limits.requests_per_minute:
            self.requests = _bucket(self.requests, limits.requests_per_minute, now)
        if old.tokens_per_minute != limits.tokens_per_minute:
            self.tokens = _bucket(self.tokens, limits.tokens_per_minute, now)

    def hold(self) -> None:
        """Keep other processes away until `let_go`, to look at or change more than one figure."""

    def let_go(self) -> None:
        """Let other processes go on."""

    def admit(self, tokens: int, now: float) -> Admission:
        """Let a request of about `tokens` in and take its share, or say what stands against it."""
        if self.share is not None and not self.share.is_left_alone(self.limits, now):
            return self._admit_by_share(self.share, tokens, now)
        limit = self.limits.concurrency
        if limit is not None and self.running >= limit:
            return _refused("concurrency", limit, CONCURRENCY_RETRY_S if limit else MINUTE_S)
        if self.requests is not None and self.requests.refill(now) < 1.0:
            return _refused(
                "requests_per_minute", int(self.requests.capacity), self.requests.wait_s(1.0)
            )
        if self.tokens is not None and self.tokens.refill(now) < max(tokens, 1):
            return _refused(
                "tokens_per_minute", int(self.tokens.capacity), self.tokens.wait_s(tokens)
            )
        self.running += 1
        if self.requests is not None:
            self.requests.level -= 1.0
        if self.tokens is not None:
            self.tokens.level -= tokens
        return ADMITTED

    def release(self, *, charged: int, used: int) -> None:
        """End an admitted request: give its place back and settle the tokens it really used."""
        self.running -= 1
        if self.share is not None and self.limits.tokens_per_minute is not None:
            self.share.tokens += charged - used
        if self.tokens is not None:
            self.tokens.level = min(self.tokens.level + charged - used, self.tokens.capacity)

    def _admit_by_share(self, share: Share, tokens: int, now: float) -> Admission:
        """Admit by what is in hand; a refusal says whether a lease call could help."""
        limits = self.limits
        never = _never_fits(limits, tokens)
        if never is not None:
            return _refused(never, _value(limits, never), MINUTE_S)
        short = share.shortage(limits, self.running, tokens, now)
        if short is None:
            self.running += 1
            share.take(limits, self.running, tokens)
            return ADMITTED
        value = _value(limits, short)
        if now >= share.until and now >= share.gone_at:
            return Admission(
                admitted=False,
                limit=short,
                limit_value=value,
                retry_after_s=UNREACHABLE_RETRY_S,
                reason=f"limit {short} of {value} cannot be shared out at present: "
                "the control plane is out of reach",
                may_lease=False,
            )
        refused = _refused(short, value, share.wait_s(limits, short, tokens))
        return Admission(
            admitted=False,
            limit=short,
            limit_value=value,
            retry_after_s=refused.retry_after_s,
            reason=refused.reason,
            may_lease=now >= share.calm_until
            and (limits.concurrency is None or self.running < limits.concurrency),
        )


def _never_fits(limits: TenantLimits, tokens: int) -> LimitName | None:
    """Name the limit that a request of this size is above by itself."""
    if limits.concurrency == 0:
        return "concurrency"
    if limits.requests_per_minute == 0:
        return "requests_per_minute"
    if limits.tokens_per_minute is not None and max(tokens, 1) > limits.tokens_per_minute:
        return "tokens_per_minute"
    return None


def _value(limits: TenantLimits, name: LimitName) -> int:
    if name == "concurrency":
        return limits.concurrency or 0
    if name == "requests_per_minute":
        return limits.requests_per_minute or 0
    return limits.tokens_per_minute or 0


def _bucket(old: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute, now) if old is None else old.resized(per_minute, now)


def _refused(limit: LimitName, value: int, retry_after_s: float) -> Admission:
    return Admission(
        admitted=False,
        limit=limit,
        limit_value=value,
        retry_after_s=retry_after_s,
        reason=f"limit {limit} of {value} is used up",
    )
