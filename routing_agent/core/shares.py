"""An agent's part of a tenant's limits: slots and amounts leased from the control plane.

What is in hand is checked and taken in memory. Only where it does not suffice may a request wait
for one lease call; what is not used goes back soon, so that another agent finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from routing_agent.wire import LEASE_S, LeaseAsk, LeaseGrant, TenantLimits

LimitName = Literal["concurrency", "requests_per_minute", "tokens_per_minute"]

NEVER: Final = float("inf")
# Unused slots and amounts are given back after one to two of these.
WINDOW_S: Final = 0.25
# After a wish that was not granted in full, the next call for this tenant waits this long.
CALM_S: Final = 0.1
RENEW_S: Final = LEASE_S / 3
# We stop using a lease before the control plane gives it to others.
MARGIN_RATIO: Final = 0.9
# How far ahead requests and tokens are taken, at the present pace.
AHEAD_S: Final = 1.0
# A tenant that asks now and then would wait for a call each time: a second's worth of its limit is
# taken ahead and kept for so long after the last use.
KEPT_S: Final = 5.0
_WHOLE: Final = 2.0**53


class Share:
    """What is in hand of one tenant's limits, and what was used of it lately."""

    __slots__ = (
        "_before",
        "_peak",
        "_used_at",
        "_used_requests",
        "_used_tokens",
        "_window_at",
        "calm_until",
        "gone_at",
        "keep",
        "leased_at",
        "reason",
        "requests",
        "requests_left",
        "slots",
        "tokens",
        "tokens_left",
        "until",
    )

    def __init__(self, now: float) -> None:
        self.slots = 0
        self.keep: int | None = None  # others wait: use no more than this of the slots
        self.requests = 0
        self.tokens = 0
        self.requests_left = 0.0  # with the control plane, when it last answered
        self.tokens_left = 0.0
        self.leased_at: float | None = None
        self.until = 0.0  # end of the lease, by our clock
        self.calm_until = 0.0
        self.gone_at = NEVER  # since when no control plane can be expected to answer
        self.reason = ""
        self._window_at = now
        self._used_at = now
        self._peak = 0
        self._before = (0, 0, 0)  # peak, requests and tokens of the window before
        self._used_requests = 0
        self._used_tokens = 0

    def figures(self) -> list[float]:
        """Give all but the reason, for another process to take over."""
        peak, requests, tokens = self._before
        return [
            self.slots,
            -1 if self.keep is None else self.keep,
            self.requests,
            self.tokens,
            self.requests_left,
            self.tokens_left,
            -1.0 if self.leased_at is None else self.leased_at,
            self.until,
            self.calm_until,
            self.gone_at,
            self._window_at,
            self._used_at,
            self._peak,
            peak,
            requests,
            tokens,
            self._used_requests,
            self._used_tokens,
        ]

    def take_over(self, figures: Sequence[float]) -> None:
        """Go on from what another process has left; see `figures`."""
        whole = [int(n) if n == n and abs(n) < _WHOLE else 0 for n in figures]
        self.slots, keep, self.requests, self.tokens = whole[:4]
        self.keep = None if keep < 0 else keep
        self.requests_left, self.tokens_left, leased_at = figures[4:7]
        self.leased_at = None if leased_at < 0 else leased_at
        self.until, self.calm_until, self.gone_at = figures[7:10]
        self._window_at, self._used_at = figures[10:12]
        self._peak, peak, requests, tokens, self._used_requests, self._used_tokens = whole[12:18]
        self._before = (peak, requests, tokens)

    def is_left_alone(self, limits: TenantLimits, now: float) -> bool:
        """Say whether the whole limit is this agent's own, as declared for want of an answer."""
        return now >= self.gone_at and now >= self.until and limits.when_unreachable == "open"

    def shortage(
        self, limits: TenantLimits, running: int, tokens: int, now: float
    ) -> LimitName | None:
        """Name the limit of which too little is in hand for one more request."""
        if now >= self.until:
            self._lapse()
        if limits.concurrency is not None and running >= self._usable_slots(limits.concurrency):
            return "concurrency"
        if limits.requests_per_minute is not None and self.requests < 1:
            return "requests_per_minute"
        if limits.tokens_per_minute is not None and self.tokens < max(tokens, 1):
            return "tokens_per_minute"
        return None

    def take(self, limits: TenantLimits, running: int, tokens: int) -> None:
        """Use what one request needs; `running` counts it."""
        if running > self._peak:
            self._peak = running
        if limits.requests_per_minute is not None:
            self.requests -= 1
            self._used_requests += 1
        if limits.tokens_per_minute is not None:
            self.tokens -= tokens
            self._used_tokens += tokens

    def wait_s(self, limits: TenantLimits, limit: LimitName, tokens: int) -> float:
        """Say how long until the whole tenant has enough again, as far as is known here."""
        if limit == "requests_per_minute" and limits.requests_per_minute:
            missing = 1 - self.requests - self.requests_left
            return max(missing, 0.0) * 60.0 / limits.requests_per_minute
        if limit == "tokens_per_minute" and limits.tokens_per_minute:
            missing = tokens - self.tokens - self.tokens_left
            return max(missing, 0.0) * 60.0 / limits.tokens_per_minute
        return 1.0

    def is_due(self, limits: TenantLimits, running: int, now: float) -> bool:
        """Say whether a call should be made though no request waits for one."""
        is_held = self.slots > 0 or (running > 0 and limits.concurrency is not None)
        if now >= self.until:
            return self.tokens < 0 or is_held
        self._turn_window(running, now)
        renew = now >= self.until - LEASE_S * MARGIN_RATIO + RENEW_S
        if is_held and (renew or self.slots > self._needed_slots(running)):
            return True
        if self.keep is not None and now - (self.leased_at or 0.0) >= WINDOW_S:
            return True
        return any(self._surpluses(limits, now))

    def forget_use(self, now: float) -> None:
        """Hold nothing for requests to come: there will be none."""
        self._peak = self._used_requests = self._used_tokens = 0
        self._before = (0, 0, 0)
        self._window_at = now
        self._used_at = now - KEPT_S

    def ask(
        self,
        tenant: str,
        limits: TenantLimits,
        waiting: tuple[int, int],
        running: int,
        now: float,
    ) -> LeaseAsk:
        """Write what is wanted for `waiting` (requests, their tokens), and give the rest back."""
        if now >= self.until:
            self._lapse()
        self._turn_window(running, now)
        count, wanted_tokens = waiting
        if not count or self.keep is not None:
            self.slots = max(min(self.slots, self._needed_slots(running)), running)
        requests_back, tokens_back = (0, 0) if count else self._surpluses(limits, now)
        self.requests -= requests_back
        self.tokens -= tokens_back
        limit = limits.concurrency
        more = 0 if limit is None else max(count - max(self.slots - running, 0), 0)
        by_request = limits.requests_per_minute is not None and count > 0
        by_token = limits.tokens_per_minute is not None and count > 0
        return LeaseAsk(
            tenant=tenant,
            slots=0 if limit is None else self.slots,
            in_use=running,
            more_slots=more,
            requests=max(count - self.requests, 0) if by_request else 0,
            requests_ahead=max(self._ahead(1), _least(limits.requests_per_minute))
            if by_request
            else 0,
            requests_returned=requests_back,
            tokens=max(wanted_tokens - self.tokens, 0) if by_token else 0,
            tokens_ahead=max(self._ahead(2), _least(limits.tokens_per_minute)) if by_token else 0,
            tokens_returned=tokens_back,
        )

    def granted(self, ask: LeaseAsk, grant: LeaseGrant, sent_at: float, now: float) -> None:
        """Take over what was granted for `ask`; `sent_at` is when the call was made."""
        self.until = sent_at + LEASE_S * MARGIN_RATIO
        self.leased_at = now
        self.slots = grant.slots
        self.keep = grant.keep
        self.requests += grant.requests
        self.tokens += grant.tokens
        self.requests_left = grant.requests_left
        self.tokens_left = grant.tokens_left
        self.reason = grant.reason
        if (
            grant.slots < ask.slots + ask.more_slots
            or grant.requests < ask.requests
            or grant.tokens < ask.tokens
        ):
            self.calm_until = now + CALM_S

    def _usable_slots(self, limit: int) -> int:
        # Of a limit that was just lowered more may be in hand than there is.
        slots = min(self.slots, limit)
        return slots if self.keep is None else min(slots, self.keep)

    def _lapse(self) -> None:
        """Forget a lease that ran out; a debt of tokens stays ours to tell."""
        self.slots = 0
        self.keep = None
        self.requests = 0
        self.tokens = min(self.tokens, 0)

    def _turn_window(self, running: int, now: float) -> None:
        if now - self._window_at < WINDOW_S:
            return
        self._before = (max(self._peak, running), self._used_requests, self._used_tokens)
        if self._used_requests or self._used_tokens:
            self._used_at = now
        self._window_at = now
        self._peak = running
        self._used_requests = self._used_tokens = 0

    def _needed_slots(self, running: int) -> int:
        """Give how many slots are worth keeping: what was used of late, unless others wait."""
        used = max(self._peak, self._before[0])
        return max(running, used if self.keep is None else min(used, self.keep))

    def _ahead(self, which: int) -> int:
        """Give what is likely to be used in the next second."""
        return int(self._before[which] * AHEAD_S / WINDOW_S)

    def _surpluses(self, limits: TenantLimits, now: float) -> tuple[int, int]:
        """Give how many requests and tokens are more than we are likely to use; debts below 0."""
        is_kept = now - self._used_at < KEPT_S
        return (
            self._surplus(self.requests, 1, _least(limits.requests_per_minute), is_kept),
            self._surplus(self.tokens, 2, _least(limits.tokens_per_minute), is_kept),
        )

    def _surplus(self, held: int, which: int, least: int, is_kept: bool) -> int:
        if held < 0:
            return held
        used = self._used_requests if which == 1 else self._used_tokens
        kept = 2 * max(self._ahead(which), used)
        return max(held - max(kept, least if is_kept else 0), 0)


def _least(per_minute: int | None) -> int:
    """Give a second's worth of a limit: 0 of a small one, which no agent may sit on."""
    return (per_minute or 0) // 60
