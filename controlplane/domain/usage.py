"""Adding usage records up by hour, tenant, key, model, version and adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from routing_agent.wire import UsageRecord

# Further from now than an agent could have kept records: its clock was wrong, now is nearer.
LONGEST_DELAY = timedelta(days=31)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class UsageKey:
    """Whose usage it is, and when."""

    hour: datetime
    tenant: str
    api_key: str
    model: str
    version: str
    adapter: str


@dataclass(slots=True, kw_only=True)
class UsageSums:
    """What was used."""

    requests: int = 0
    failed: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, record: UsageRecord) -> None:
        """Count one finished request."""
        self.requests += 1
        self.failed += record.status >= 400
        self.estimated += record.estimated
        self.prompt_tokens += record.prompt_tokens
        self.cached_prompt_tokens += record.cached_prompt_tokens
        self.output_tokens += record.output_tokens


def roll_up(records: Iterable[UsageRecord], *, now: datetime) -> dict[UsageKey, UsageSums]:
    """Add records up, in the order of their keys: whoever writes them takes row locks in order."""
    sums: dict[UsageKey, UsageSums] = {}
    for record in records:
        key = UsageKey(
            hour=_hour(record.at, now),
            tenant=record.tenant[:63],
            api_key=record.api_key[:32],
            model=record.model[:200],
            version=record.version[:100],
            adapter=record.adapter[:200],
        )
        sums.setdefault(key, UsageSums()).add(record)
    return dict(sorted(sums.items()))


def last_uses(records: Iterable[UsageRecord], *, now: datetime) -> dict[str, datetime]:
    """Give when each key that is named was last used."""
    uses: dict[str, datetime] = {}
    for record in records:
        if record.api_key:
            at = min(_moment(record.at, now), now)
            uses[record.api_key] = max(at, uses.get(record.api_key, at))
    return uses


def adapter_uses(records: Iterable[UsageRecord], *, now: datetime) -> dict[str, datetime]:
    """Give when each adapter, by served name, was asked for last; a failed request counts too."""
    uses: dict[str, datetime] = {}
    for record in records:
        if record.adapter:
            at = min(_moment(record.at, now), now)
            uses[record.adapter] = max(at, uses.get(record.adapter, at))
    return uses


def _hour(at: float, now: datetime) -> datetime:
    return _moment(at, now).replace(minute=0, second=0, microsecond=0)


def _moment(at: float, now: datetime) -> datetime:
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return now
    return now if abs(moment - now) > LONGEST_DELAY else moment
