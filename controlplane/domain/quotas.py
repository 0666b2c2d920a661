"""How one tenant's limits are divided between agents, so that no more is ever given than there is.

The control plane keeps a ledger for each tenant: how many concurrency slots each agent holds, and
one bucket each of requests and tokens that refills evenly and holds a minute's worth. Agents take
what they need and return what they do not use. What is taken from a bucket is gone from it, and a
slot belongs to one agent until that says it gave it back or its lease runs out: so the sum holds
whatever is lost, repeated or late. Times are the control plane's, Unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from routing_agent import wire

MINUTE_S: Final = 60.0
# A refused wish keeps its claim this long: an agent with requests asks again sooner.
WISH_S: Final = 0.3
# The mark of an agent's last call is kept after its lease, so that a late repetition is known.
REMEMBERED_S: Final = 3600.0
# Of what is left, this part is spread over the agents for requests that are likely to come.
AHEAD_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What is left of a minute's worth, as of `at`; below zero is a debt."""

    per_minute: int
    level: float
    at: float

    def aged(self, per_minute: int, now: float) -> Bucket:
        """Refill up to `now`, and obey a changed limit: what is used stays used."""
        gained = max(now - self.at, 0.0) * self.per_minute / MINUTE_S
        level = min(self.level + gained, float(self.per_minute)) + per_minute - self.per_minute
        return Bucket(per_minute=per_minute, level=min(level, float(per_minute)), at=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one agent holds, and the last call of it that was booked."""

    start: int
    serial: int
    until: float
    slots: int = 0
    in_use: int = 0
    wish: int = 0  # slots it asked for and did not get
    wished_at: float = 0.0
    seen_at: float = 0.0
    answer: wire.LeaseGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Who holds what of one tenant's limits."""

    holdings: Mapping[str, Holding] = field(default_factory=dict)
    requests: Bucket | None = None
    tokens: Bucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Which call of which agent: later calls have a higher mark."""

    agent: str
    start: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """The ledger after a call, and the answer, which carries the reason."""

    ledger: Ledger
    grant: wire.LeaseGrant


def shares(limit: int, demands: Mapping[str, int]) -> dict[str, int]:
    """Divide a limit by demand: the shares sum exactly to it.

    Small demands are met first, large ones get equal parts of the rest (max-min fairness), and
    what nobody asks for is spread evenly. Of equal demands the last by name gets what cannot be
    divided: it is the home of a limit below the number of agents.
    """
    given: dict[str, int] = {}
    left = limit
    by_demand = sorted(demands, key=lambda name: (demands[name], name))
    for i, name in enumerate(by_demand):
        given[name] = min(demands[name], left // (len(by_demand) - i))
        left -= given[name]
    for i, name in enumerate(reversed(by_demand)):
        part = -(-left // (len(by_demand) - i))
        given[name] += part
        left -= part
    return given


def aged(ledger: Ledger, limits: wire.TenantLimits, now: float) -> Ledger:
    """Bring a ledger up to `now`: leases that ran out are free, buckets have refilled."""
    return Ledger(
        holdings={
            name: _aged_holding(h, now)
            for name, h in ledger.holdings.items()
            if now - h.until < REMEMBERED_S
        },
        requests=_aged_bucket(ledger.requests, limits.requests_per_minute, now),
        tokens=_aged_bucket(ledger.tokens, limits.tokens_per_minute, now),
    )


def live(ledger: Ledger, now: float) -> dict[str, Holding]:
    """Give the agents whose leases have not run out."""
    return {name: h for name, h in ledger.holdings.items() if h.until > now}


def demands(ledger: Ledger, now: float) -> dict[str, int]:
    """Give how many slots each live agent has use for at present."""
    return {
        name: h.in_use + (h.wish if now - h.wished_at < WISH_S else 0)
        for name, h in live(ledger, now).items()
    }


def lease(
    ledger: Ledger, limits: wire.TenantLimits, ask: wire.LeaseAsk, *, caller: Caller, now: float
) -> Leased:
    """Answer one ask. A repeated call gets its answer again, an overtaken one changes nothing."""
    ledger = aged(ledger, limits, now)
    mine = ledger.holdings.get(caller.agent)
    if mine is not None:
        if (caller.start, caller.serial) < (mine.start, mine.serial):
            return Leased(ledger=ledger, grant=mine.answer)
        if (caller.start, caller.serial) == (mine.start, mine.serial):
            return _answered_again(ledger, limits, ask, caller=caller, now=now)
    holding, ledger = _slots(ledger, limits.concurrency, ask, caller=caller, now=now)
    agents = len(live(ledger, now).keys() | {caller.agent})
    requests, bucket_r = _take(
        ledger.requests, ask.requests_returned, ask.requests, ask.requests_ahead, agents
    )
    tokens, bucket_t = _take(
        ledger.tokens, ask.tokens_returned, ask.tokens, ask.tokens_ahead, agents
    )
    grant = wire.LeaseGrant(
        tenant=ask.tenant,
        slots=holding.slots,
        keep=holding.answer.keep,
        requests=requests,
        requests_left=0.0 if bucket_r is None else bucket_r.level,
        tokens=tokens,
        tokens_left=0.0 if bucket_t is None else bucket_t.level,
        reason=holding.answer.reason,
    )
    held = {**ledger.holdings, caller.agent: replace(holding, answer=grant)}
    return Leased(ledger=Ledger(holdings=held, requests=bucket_r, tokens=bucket_t), grant=grant)


def _aged_holding(holding: Holding, now: float) -> Holding:
    """Free the slots of a lease that ran out; a clock set back must not hold one for ever."""
    until = min(holding.until, now + wire.LEASE_S)
    if until <= now:
        return replace(holding, until=until, slots=0, in_use=0, wish=0)
    return replace(holding, until=until, wished_at=min(holding.wished_at, now))


def _aged_bucket(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute=per_minute, level=float(per_minute), at=now)
    return bucket.aged(per_minute, now)


def _slots(
    ledger: Ledger, limit: int | None, ask: wire.LeaseAsk, *, caller: Caller, now: float
) -> tuple[Holding, Ledger]:
    """Give the slots an agent holds from now on; its answer has `keep` and the reason only."""
    bare = wire.LeaseGrant(tenant=ask.tenant)
    holding = Holding(
        start=caller.start,
        serial=caller.serial,
        until=now + wire.LEASE_S,
        in_use=ask.in_use,
        seen_at=now,
        answer=bare,
    )
    if limit is None:
        return holding, ledger
    others = {n: h for n, h in live(ledger, now).items() if n != caller.agent}
    free = limit - sum(h.slots for h in others.values())
    # Requests that run cannot be taken back, whatever the books said meanwhile.
    base = max(min(ask.slots, free), ask.in_use)
    wished = {n: d for n, d in demands(ledger, now).items() if n != caller.agent}
    wished[caller.agent] = ask.in_use + ask.more_slots
    fair = shares(limit, wished)
    owed = {
        n: min(fair[n] - h.slots, h.wish)
        for n, h in others.items()
        if h.wish and now - h.wished_at < WISH_S and fair[n] > h.slots
    }
    more = min(ask.more_slots, max(free - base - sum(owed.values()), 0))
    keep = max(fair[caller.agent], 0) if owed else None
    reason = _reason(limit, base, more, ask.more_slots, {n: h.slots for n, h in others.items()})
    wish = ask.more_slots - more
    holding = replace(
        holding,
        slots=base + more,
        wish=wish,
        wished_at=now if wish else 0.0,
        answer=wire.LeaseGrant(tenant=ask.tenant, keep=keep, reason=reason),
    )
    return holding, ledger


def _reason(limit: int, base: int, more: int, wanted: int, others: Mapping[str, int]) -> str:
    elsewhere = sum(others.values())
    return (
        f"{base + more} of {limit} held here ({more} of {wanted} more were free), "
        f"{elsewhere} by {len(others)} other agents"
    )


def _take(
    bucket: Bucket | None, returned: int, need: int, ahead: int, agents: int
) -> tuple[int, Bucket | None]:
    """Take from a bucket what is needed, and of the rest a little ahead."""
    if bucket is None:
        return 0, None
    level = min(bucket.level + returned, float(bucket.per_minute))
    taken = min(need, max(math.floor(level), 0))
    spare = max(math.floor((level - taken) * AHEAD_RATIO / agents), 0)
    taken += min(ahead, spare)
    return taken, replace(bucket, level=level - taken)


def _answered_again(
    ledger: Ledger,
    limits: wire.TenantLimits,
    ask: wire.LeaseAsk,
    *,
    caller: Caller,
    now: float,
) -> Leased:
    """Repeat an answer that was lost. Slots that were freed meanwhile are given only if free."""
    mine = ledger.holdings[caller.agent]
    slots = mine.answer.slots
    if limits.concurrency is not None:
        others = sum(h.slots for n, h in live(ledger, now).items() if n != caller.agent)
        slots = max(min(slots, limits.concurrency - others), ask.in_use)
    grant = wire.LeaseGrant(
        tenant=ask.tenant,
        slots=slots,
        keep=mine.answer.keep,
        requests=mine.answer.requests,
        requests_left=mine.answer.requests_left,
        tokens=mine.answer.tokens,
        tokens_left=mine.answer.tokens_left,
        reason=mine.answer.reason,
    )
    renewed = replace(
        mine,
        until=now + wire.LEASE_S,
        slots=slots,
        in_use=ask.in_use,
        seen_at=now,
        answer=grant,
    )
    return Leased(
        ledger=replace(ledger, holdings={**ledger.holdings, caller.agent: renewed}), grant=grant
    )
