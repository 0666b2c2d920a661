"""A tenant's limits where several processes admit: checked and taken under one lock."""

from __future__ import annotations

from struct import Struct
from typing import Final

from routing_agent.core.limits import ADMITTED, Admission, TenantGate
from routing_agent.wire import TenantLimits
from routing_agent.workers.memory import TENANT_LOCKS, WORD, SharedMemory

# The figures of a gate: of both buckets the time up to which it was filled, then what is in it;
# whether there are any figures; those of the share. A process that dies between two of them leaves
# less to the others, never more.
_FIGURES: Final = Struct("5d")
_IS_SET: Final = 4
_SHARE: Final = 5
_SHARE_FIGURES: Final = Struct("18d")
# Far from its limits a process takes places for its next requests along, so that it needs no lock
# for them: this part of what is free, divided by all processes, at most so many, and none below so
# few. It gives them back with the next lock, after a tenth of a second at the latest. So limits are
# never passed, and one with little room is filled exactly.
_SPARE_PART: Final = 8
_MOST_SPARE: Final = 64
_LEAST_SPARE: Final = 4


class SharedGate(TenantGate):
    """The gate of all processes; `worker` is whose running requests are counted, if anybody's.

    The supervisor is the `master`: only it follows a change of the limits in what is shared.
    """

    __slots__ = (
        "_bytes",
        "_counts",
        "_figures",
        "_is_held",
        "_kept",
        "_left",
        "_memory",
        "_own",
        "_row",
        "_slot",
        "_spare",
        "_spare_tokens",
        "_unsettled",
        "_worker",
        "master",
    )

    def __init__(
        self, limits: TenantLimits, now: float, memory: SharedMemory, slot: int, worker: int
    ) -> None:
        super().__init__(limits, now)
        self._memory = memory
        self._bytes = memory.bytes
        self._counts = memory.gate_counts
        self._left = (0.0, 0.0, 0.0, 0.0, 0.0)  # the figures when the lock was taken
        self._slot = TENANT_LOCKS + slot
        self._row = memory.gate(slot)
        self._figures = self._row + 2 * memory.workers
        self._worker = worker
        self.master = worker < 0
        self._own = self._kept = 0
        self._spare = self._spare_tokens = 0  # taken along for the next requests
        self._unsettled = 0  # tokens that requests were charged and did not use
        self._is_held = False
        if self.master:
            self.hold()
            memory.floats[self._figures + _IS_SET] = 0.0  # whatever had this slot before
            for cell in range(self._row + memory.workers, self._figures):
                memory.ints[cell] = 0
            self.let_go()

    def adopt(self, limits: TenantLimits, now: float) -> None:
        """Obey new limits, keeping what is used."""
        self.hold()
        try:
            super().adopt(limits, now)
        finally:
            self.let_go(changed=self.master)

    def admit(self, tokens: int, now: float) -> Admission:
        """Let a request of about `tokens` in and take its share, or say what stands against it."""
        if not has_any(self.limits):
            self._count(1)
            return ADMITTED
        if self._spare and not self._kept and tokens <= self._spare_tokens:
            self._spare -= 1
            self._spare_tokens -= tokens
            self._count(1)
            return ADMITTED
        self.hold()
        try:
            if self._unsettled:
                self._settle()
            if self._kept:
                self._take_kept()
                return ADMITTED
            admission = super().admit(tokens, now)
            if admission.admitted:
                self._count(1)
                if self.share is None and self._worker >= 0:
                    self._take_spare(max(tokens, 1))
            return admission
        finally:
            self.let_go()

    def keep(self, tokens: int, now: float, worker: int) -> bool:
        """Let a request of another process in, which learns of it later; false if it may not."""
        self.hold()
        try:
            admitted = super().admit(tokens, now).admitted
            if admitted:
                self._memory.ints[self._row + self._memory.workers + worker] += 1
            return admitted
        finally:
            self.let_go()

    def expect_kept(self) -> None:
        """Give the next request the place that was kept for it."""
        self._kept += 1

    def give_kept_back(self, tokens: int) -> None:
        """Give a kept place back, if the request that it was for did not take it."""
        if self._kept:
            self.hold()
            try:
                self._take_kept()
            finally:
                self.let_go()
            self.release(charged=tokens, used=0)

    def _take_kept(self) -> None:
        self._kept -= 1
        self._memory.ints[self._row + self._memory.workers + self._worker] -= 1
        self._count(1)

    def release(self, *, charged: int, used: int) -> None:
        """End an admitted request: its place is free at once, its tokens with the next lock."""
        self._count(-1)
        if self.limits.tokens_per_minute is not None:
            self._unsettled += charged - used

    def settle(self) -> None:
        """Settle what requests really used, and give back what was taken along for others."""
        if self._unsettled or self._spare:
            self.hold()
            try:
                self._settle()
            finally:
                self.let_go()

    def _settle(self) -> None:
        more, self._unsettled = self._unsettled, 0
        if self.share is not None and self.limits.tokens_per_minute is not None:
            self.share.tokens += more
        if self.tokens is not None:
            self.tokens.level = min(self.tokens.level + more, self.tokens.capacity)

    def _take_spare(self, tokens: int) -> None:
        """Take places along for the next requests of about so many tokens, if there are plenty."""
        free = float(_SPARE_PART * _MOST_SPARE * self._memory.workers)
        if self.limits.concurrency is not None:
            free = min(free, self.limits.concurrency - self.running)
        if self.requests is not None:
            free = min(free, self.requests.level)
        if self.tokens is not None:
            free = min(free, self.tokens.level / tokens)
        spare = int(free) // (_SPARE_PART * self._memory.workers)
        if spare < _LEAST_SPARE:
            return
        self._spare, self._spare_tokens = spare, spare * tokens
        if self.requests is not None:
            self.requests.level -= spare
        if self.tokens is not None:
            self.tokens.level -= self._spare_tokens
        self._count(0)

    def _give_spare_back(self) -> None:
        self.running -= self._spare
        if self.requests is not None:
            self.requests.level = min(self.requests.level + self._spare, self.requests.capacity)
        if self.tokens is not None:
            level = self.tokens.level + self._spare_tokens
            self.tokens.level = min(level, self.tokens.capacity)
        self._spare = self._spare_tokens = 0
        self._count(0)

    def hold(self) -> None:
        """Keep other processes away until `let_go`, and take over what they have left."""
        self._memory.lock(self._slot)
        self._is_held = True
        counts: tuple[int, ...] = self._counts.unpack_from(self._bytes, self._row * WORD)
        running = 0
        for count in counts:
            running += count
        self.running = running
        at = self._figures * WORD
        left: tuple[float, float, float, float, float] = _FIGURES.unpack_from(self._bytes, at)
        self._left = left
        if left[_IS_SET]:
            if self.requests is not None:
                self.requests.take_over(left[1], left[0])
            if self.tokens is not None:
                self.tokens.take_over(left[3], left[2])
            if self.share is not None:
                self.share.take_over(_SHARE_FIGURES.unpack_from(self._bytes, at + _SHARE * WORD))
        if self._spare:
            self._give_spare_back()

    def let_go(self, *, changed: bool = True) -> None:
        """Leave what this process knows to the others, and let them go on."""
        try:
            if changed:
                self._leave_figures()
        finally:
            self._is_held = False
            self.running = self._own  # the sum is taken when it matters
            self._memory.unlock(self._slot)

    def _leave_figures(self) -> None:
        requests_at, requests, tokens_at, tokens, _ = self._left
        if self.requests is not None:
            requests, requests_at = self.requests.figures()
        if self.tokens is not None:
            tokens, tokens_at = self.tokens.figures()
        at = self._figures * WORD
        _FIGURES.pack_into(self._bytes, at, requests_at, requests, tokens_at, tokens, 1.0)
        if self.share is not None:
            share = self.share.figures()
            _SHARE_FIGURES.pack_into(self._bytes, at + _SHARE * WORD, *share)

    def _count(self, more: int) -> None:
        self._own += more
        if self._worker >= 0:
            self._memory.ints[self._row + self._worker] = self._own + self._spare
        if not self._is_held:
            self.running = self._own


def has_any(limits: TenantLimits) -> bool:
    """Say whether a tenant is limited at all."""
    return (
        limits.concurrency is not None
        or limits.requests_per_minute is not None
        or limits.tokens_per_minute is not None
    )
