"""What is counted together: latencies by bucket, requests and tokens of a pool or a tenant.

Each count knows how much of it reports have had, so that they take what is new.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from routing_agent import wire
from routing_agent.wire import LATENCY_BOUNDS_S

if TYPE_CHECKING:
    from routing_agent.metrics import FinishedRequest

BUCKETS: Final = len(LATENCY_BOUNDS_S) + 1
STAGES: Final = ("connect", "prefill", "decode")  # and "queue", which is queue_wait
_BOUNDS_S: Final = LATENCY_BOUNDS_S


class Histogram:
    """Counts by latency bucket, with the sum that Prometheus wants."""

    __slots__ = ("counts", "sum_s", "taken")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.taken = [0] * BUCKETS  # what reports have had
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one sample."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1  # as `wire.latency_bucket`
        self.sum_s += seconds

    def take(self) -> wire.Histogram:
        """Give the new samples since the last call."""
        pairs = enumerate(zip(self.counts, self.taken, strict=True))
        fresh = {i: count - taken for i, (count, taken) in pairs if count != taken}
        self.taken = self.counts.copy()
        return fresh

    def give_back(self, samples: wire.Histogram) -> None:
        """Put samples back that were not reported."""
        for i, count in samples.items():
            self.taken[i] -= count


class Tally:
    """Named counts of which reports take what is new."""

    __slots__ = ("taken", "total")

    def __init__(self) -> None:
        self.total: dict[str, int] = {}
        self.taken: dict[str, int] = {}

    def add(self, name: str, count: int) -> None:
        """Count so many more."""
        self.total[name] = self.total.get(name, 0) + count

    def take(self) -> dict[str, int]:
        """Give what is new since the last call."""
        fresh = {
            name: new
            for name, count in self.total.items()
            if (new := count - self.taken.get(name, 0))
        }
        self.taken = self.total.copy()
        return fresh

    def give_back(self, counts: Mapping[str, int]) -> None:
        """Put counts back that were not reported."""
        for name, count in counts.items():
            self.taken[name] = self.taken.get(name, 0) - count


class PoolCounts:
    """What one pool and version did."""

    __slots__ = (
        "e2e",
        "engine_queue_wait",
        "queue_wait",
        "requests",
        "stages",
        "tokens",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.requests = Tally()
        self.tokens = Tally()  # prompt, cached, output, retries, shed
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.e2e = Histogram()
        self.queue_wait = Histogram()
        self.engine_queue_wait = Histogram()  # as engines tell of their own queues
        self.stages = {stage: Histogram() for stage in STAGES}

    def add_times(self, record: FinishedRequest) -> None:
        """Count how long one finished request took."""
        self.e2e.add(record.e2e_s)
        self.queue_wait.add(record.queue_wait_s)
        if record.connect_s is not None:
            self.stages["connect"].add(record.connect_s)
        if record.ttft_s is not None:
            self.ttft.add(record.ttft_s)
            # No proxy sees a prefill begin: what is left of the TTFT counts as prefill.
            waited_s = record.queue_wait_s + (record.connect_s or 0.0)
            self.stages["prefill"].add(max(record.ttft_s - waited_s, 0.0))
            self.stages["decode"].add(max(record.e2e_s - record.ttft_s, 0.0))
        if record.tpot_s is not None:
            self.tpot.add(record.tpot_s)

    def take(self, pool: str, version: str) -> wire.PoolDelta:
        """Give what is new."""
        tokens = self.tokens.take()
        return wire.PoolDelta(
            pool=pool,
            version=version,
            requests=self.requests.take(),
            ttft=self.ttft.take(),
            tpot=self.tpot.take(),
            e2e=self.e2e.take(),
            queue_wait=self.queue_wait.take(),
            engine_queue_wait=self.engine_queue_wait.take(),
            prompt_tokens=tokens.get("prompt", 0),
            cached_prompt_tokens=tokens.get("cached", 0),
            output_tokens=tokens.get("output", 0),
            retries=tokens.get("retries", 0),
            shed=tokens.get("shed", 0),
        )

    def give_back(self, delta: wire.PoolDelta) -> None:
        """Put a delta back."""
        self.requests.give_back(delta.requests)
        self.ttft.give_back(delta.ttft)
        self.tpot.give_back(delta.tpot)
        self.e2e.give_back(delta.e2e)
        self.queue_wait.give_back(delta.queue_wait)
        self.engine_queue_wait.give_back(delta.engine_queue_wait)
        self.tokens.give_back(
            {
                "prompt": delta.prompt_tokens,
                "cached": delta.cached_prompt_tokens,
                "output": delta.output_tokens,
                "retries": delta.retries,
                "shed": delta.shed,
            }
        )


class TenantCounts:
    """What one tenant did."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = Tally()
        self.tokens = Tally()


class Alike:
    """Finished requests that differ in nothing that is counted but in their tokens and times."""

    __slots__ = ("cached_tokens", "output_tokens", "pool", "prompt_tokens", "requests")

    def __init__(self, pool: PoolCounts | None) -> None:
        self.pool = pool  # where their times go; None: they came to no pool
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0

    def add(self, record: FinishedRequest) -> None:
        """Count one more."""
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_prompt_tokens
        self.output_tokens += record.output_tokens
        if self.pool is not None:
            self.pool.add_times(record)


class LeaseCounts:
    """What lease calls did, since this process began."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()  # answered, failed
        self.waits: Counter[str] = (
            Counter()
        )  # requests that waited: answered, failed, too_late, hung
        self.last_error = ""  # empty: the last call was answered
        self.seconds = Histogram()  # how long answered calls took

    def report(self) -> wire.LeaseHealth:
        """Give what the control plane is told."""
        answered = self.calls["answered"]
        return wire.LeaseHealth(
            answered=answered,
            failed=self.calls["failed"],
            waited=self.waits.total(),
            waited_in_vain=self.waits.total() - self.waits["answered"],
            mean_s=self.seconds.sum_s / answered if answered else None,
            last_error=self.last_error,
        )
