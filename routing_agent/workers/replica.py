"""A replica to which several processes of one agent send requests."""

from __future__ import annotations

from collections.abc import Callable

from routing_agent.core.replica import DoubtSource, Replica
from routing_agent.wire import Endpoint, PoolSettings
from routing_agent.workers.memory import (
    REPLICA_CELLS,
    REPLICA_LOCKS,
    REQUESTS,
    TOKENS,
    WORD,
    SharedMemory,
)
from routing_agent.workers.prefill import SharedPrefill, WatchedPrefill, WatchedProfile

# A replica, what a request told of it, when, whether it was a trial, and whether it may open.
Publish = Callable[[str, str, float, tuple[bool, bool]], None]


class SharedReplica(Replica):
    """A replica that other processes send requests to as well.

    `inflight_requests` and `inflight_tokens` are everybody's, as of the last `look`.
    """

    __slots__ = (
        "_bytes",
        "_claimed",
        "_ints",
        "_memory",
        "_own",
        "_own_at",
        "_prefill",
        "_row_at",
        "_struct",
        "own_requests",
        "own_tokens",
        "publish",
        "seen_adapters",
        "slot",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pool: str,
        settings: PoolSettings,
        memory: SharedMemory,
        place: tuple[int, int],
    ) -> None:
        super().__init__(endpoint, pool=pool, settings=settings)
        self.slot, worker = place
        self._memory = memory
        self._ints, self._bytes, self._struct = memory.ints, memory.bytes, memory.replica_row
        row = memory.replica(self.slot)
        self._row_at = row * WORD
        # The supervisor has no cells: it sends nothing.
        self._own = -1 if worker < 0 else worker * REPLICA_CELLS  # from the beginning of the row
        self._own_at = row + self._own
        self._claimed = 0
        self.own_requests = self.own_tokens = 0
        self.seen_adapters: tuple[str, ...] = ()  # that the supervisor told of last
        self.publish: Publish | None = None  # tells the other processes what is rare
        self._prefill: SharedPrefill | None = None
        if self._own >= 0:
            self.prefill = self._prefill = SharedPrefill(memory, row + self._own)
        else:
            self.prefill = WatchedPrefill(memory, row)
            self.profile = WatchedProfile()

    @property
    def may_send(self) -> bool:
        """Whether this process sends requests, rather than watch those that do."""
        return self._own >= 0

    def look(self) -> None:
        """Take in what the other processes have here."""
        row: tuple[int, ...] = self._struct.unpack_from(self._bytes, self._row_at)
        requests = tokens = 0
        for cell in range(0, len(row), REPLICA_CELLS):
            requests += row[cell + REQUESTS]
            tokens += row[cell + TOKENS]
        self.inflight_requests, self.inflight_tokens = requests, tokens
        if self._prefill is not None:
            self._prefill.look(row, self._own)

    def claim(self) -> bool:
        """Take a place for the next `begin`, unless others have taken the last one."""
        if self.ceiling is None or self._own < 0:
            return True
        self._memory.lock(REPLICA_LOCKS + self.slot)
        try:
            self.look()
            if not self.has_room():
                return False
            self._claimed += 1
            self._tell()
            return True
        finally:
            self._memory.unlock(REPLICA_LOCKS + self.slot)

    def begin(self, tokens: int, now: float) -> bool:
        """Charge a request to this replica; true if it is the breaker's trial."""
        if self._claimed:
            self._claimed -= 1
        self.own_requests += 1
        self.own_tokens += tokens
        self._tell()
        trial = super().begin(tokens, now)
        if trial:
            self._publish("began", now, trial, False)
        return trial

    def release(self, tokens: int) -> None:
        """Give back what `begin` charged."""
        self.own_requests -= 1
        self.own_tokens -= tokens
        self._tell()
        super().release(tokens)

    def _tell(self) -> None:
        ints, at = self._ints, self._own_at
        ints[at + REQUESTS] = self.own_requests + self._claimed
        ints[at + TOKENS] = self.own_tokens

    def note_success(self, now: float, *, trial: bool) -> None:
        """Note an answer that proves the engine works."""
        if self.breaker.state != "closed":
            super().note_success(now, trial=trial)
            self._publish("succeeded", now, trial, False)

    def note_failure(self, now: float, *, trial: bool, may_open: bool) -> bool:
        """Note a failure of the engine; true if that opened its breaker."""
        opened = super().note_failure(now, trial=trial, may_open=may_open)
        self._publish("failed", now, trial, may_open)
        return opened

    def note_abandoned(self, *, trial: bool) -> None:
        """Note a request that ended without telling anything about the engine."""
        super().note_abandoned(trial=trial)
        if trial:
            self._publish("abandoned", 0.0, trial, False)

    def note_doubt(self, source: DoubtSource, reason: str) -> bool:
        """Keep new requests away for `reason`, or let them come again (""); true if it changed."""
        changed = super().note_doubt(source, reason)
        if changed and reason and source == "answers":
            self._publish(reason, 0.0, False, False)
        return changed

    def take_over_ramp(self, since: float | None) -> None:
        """Be in slow start since then, or in none, as the supervisor has seen it."""
        if since is None or self.ramp_from is None or since > self.ramp_from:
            self.ramp_from = since
        self._judge()

    def sibling_judged(self, verdict: str, at: float, how: tuple[bool, bool]) -> None:
        """Take in what a request of another process told of the engine; see `Breaker`."""
        trial, may_open = how
        breaker = self.breaker
        if verdict == "failed":
            breaker.failed(at, trial=trial, may_open=may_open)
        elif verdict == "abandoned":
            breaker.abandoned(trial=trial)
        elif verdict == "began":
            breaker.began(at)
        elif breaker.succeeded(trial=trial):
            self.ramp_from = at
        self._judge()

    def _publish(self, verdict: str, at: float, trial: bool, may_open: bool) -> None:
        if self.publish is not None and self._own >= 0:
            self.publish(self.id, verdict, at, (trial, may_open))

    def tokens_of_others(self, now: float) -> float | None:
        """Estimate the prompt tokens that others have waiting here; None: nothing is known."""
        others = super().tokens_of_others(now)
        prefill = self._prefill
        if prefill is None or prefill.queued_tokens:
            return others  # what other processes sent is in its backlog
        if not prefill.others_queued_tokens:
            return others
        return (others or 0.0) + prefill.backlog_tokens(now)
