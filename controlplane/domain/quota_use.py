"""What a tenant's ledger says of its limits, for people to read: taken, left, and by whom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from controlplane.domain.amounts import counted
from controlplane.domain.quotas import WISH_S, Ledger, aged, demands, live, shares
from routing_agent import wire

# From here on a limit is shown as nearly used up.
NEAR_RATIO: Final = 0.8
BUCKETS: Final = {
    "requests": "Requests a minute",
    "tokens": "Tokens a minute, in and out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUse:
    """What one agent holds of a concurrency limit."""

    agent: str
    slots: int
    in_use: int
    share: int | None  # what is its due by present demand; None: there is no such limit
    wish: int  # asked for and not there, just now
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """One limit as its tenant reads it; `who` says where what is not left is."""

    name: str
    label: str
    allowed: int
    taken: int
    left: int
    who: str

    @property
    def used_ratio(self) -> float:
        """Give how much of it is taken, 0 to 1; a limit of nothing is all taken."""
        return min(max(self.taken / self.allowed, 0.0), 1.0) if self.allowed else 1.0

    @property
    def code(self) -> str:
        """Give how near its end it is: `ok`, `warning` from four fifths on, `exhausted`."""
        if self.left <= 0:
            return "exhausted"
        return "warning" if self.used_ratio >= NEAR_RATIO else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """What is used and left of a tenant's limits; None where there is no such limit."""

    concurrency: int | None
    slots_held: int
    slots_in_use: int
    requests_per_minute: int | None
    requests_left: int | None
    tokens_per_minute: int | None
    tokens_left: int | None
    agents: tuple[AgentUse, ...] = ()

    @property
    def is_unlimited(self) -> bool:
        """Say whether there is no limit at all."""
        return not self.lines

    @property
    def tightest(self) -> LimitLine | None:
        """Give the limit of which the largest part is taken."""
        return max(self.lines, key=lambda line: line.used_ratio, default=None)

    @property
    def lines(self) -> list[LimitLine]:
        """Give each limit there is, with what is taken of it."""
        lines = [] if self.concurrency is None else [self._slots_line(self.concurrency)]
        for name, label in BUCKETS.items():
            limit, left = getattr(self, f"{name}_per_minute"), getattr(self, f"{name}_left")
            if limit is not None:
                given = limit if left is None else left
                lines.append(
                    LimitLine(
                        name=name,
                        label=label,
                        allowed=limit,
                        taken=limit - given,
                        left=max(given, 0),
                        who="taken by requests, or by agents for requests to come",
                    )
                )
        return lines

    def _slots_line(self, concurrency: int) -> LimitLine:
        idle = self.slots_held - self.slots_in_use
        agents = counted(len(self.agents), "agents")
        who = f"{self.slots_in_use} running, {idle} held ready by {agents}"
        return LimitLine(
            name="concurrency",
            label="Requests at the same time",
            allowed=concurrency,
            taken=self.slots_held,
            left=max(concurrency - self.slots_held, 0),
            who=who if self.agents else "nothing is running",
        )


def use(ledger: Ledger, limits: wire.TenantLimits, now: float) -> LimitUse:
    """Give what a ledger says at `now`, for people to read."""
    ledger = aged(ledger, limits, now)
    holdings = live(ledger, now)
    parts = None if limits.concurrency is None else shares(limits.concurrency, demands(ledger, now))
    agents = tuple(
        AgentUse(
            agent=name,
            slots=h.slots,
            in_use=h.in_use,
            share=None if parts is None else parts[name],
            wish=h.wish if now - h.wished_at < WISH_S else 0,
            age_s=max(now - h.seen_at, 0.0),
        )
        for name, h in sorted(holdings.items())
    )
    return LimitUse(
        concurrency=limits.concurrency,
        slots_held=sum(a.slots for a in agents),
        slots_in_use=sum(a.in_use for a in agents),
        requests_per_minute=limits.requests_per_minute,
        requests_left=None if ledger.requests is None else math.floor(ledger.requests.level),
        tokens_per_minute=limits.tokens_per_minute,
        tokens_left=None if ledger.tokens is None else math.floor(ledger.tokens.level),
        agents=agents,
    )
