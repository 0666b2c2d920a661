"""A tenant's limits where several processes admit: checked and taken under one lock."""

from __future__ import annotations

from typing import Final

from routing_agent.core.limits import ADMITTED, Admission, TenantGate
from routing_agent.wire import TenantLimits
from routing_agent.workers.memory import GATE_FIGURES, TENANT_LOCKS, SharedMemory

# The figures of a gate: whether there are any, both buckets, then those of the share.
_IS_SET: Final = 0
_REQUESTS: Final = 1
_TOKENS: Final = 3
_SHARE: Final = 5


class SharedGate(TenantGate):
    """The gate of all processes; `worker` is whose running requests are counted, if anybody's.

    The supervisor is the `master`: only it follows a change of the limits in what is shared.
    """

    __slots__ = (
        "_figures",
        "_is_held",
        "_kept",
        "_memory",
        "_own",
        "_row",
        "_slot",
        "_unsettled",
        "_worker",
        "master",
    )

    def __init__(
        self, limits: TenantLimits, now: float, memory: SharedMemory, slot: int, worker: int
    ) -> None:
        super().__init__(limits, now)
        self._memory = memory
        self._slot = TENANT_LOCKS + slot
        self._row = memory.gate(slot)
        self._figures = self._row + 2 * memory.workers
        self._worker = worker
        self.master = worker < 0
        self._own = self._kept = 0
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
        """Settle what requests really used, if none has come since."""
        if self._unsettled:
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

    def hold(self) -> None:
        """Keep other processes away until `let_go`, and take over what they have left."""
        memory = self._memory
        memory.lock(self._slot)
        self._is_held = True
        self.running = sum(memory.ints[self._row : self._figures].tolist())
        # Not by `tolist`: to type checkers that gives whole numbers, and compiled code believes it.
        figures = list(memory.floats[self._figures : self._figures + GATE_FIGURES])
        if not figures[_IS_SET]:
            return
        if self.requests is not None:
            self.requests.take_over(figures[_REQUESTS], figures[_REQUESTS + 1])
        if self.tokens is not None:
            self.tokens.take_over(figures[_TOKENS], figures[_TOKENS + 1])
        if self.share is not None:
            self.share.take_over(figures[_SHARE:])

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
        floats, at = self._memory.floats, self._figures
        # A process that dies between two of these leaves less to the others, never more: the time
        # up to which a bucket was filled comes before what is in it.
        if self.requests is not None:
            level, filled_at = self.requests.figures()
            floats[at + _REQUESTS + 1] = filled_at
            floats[at + _REQUESTS] = level
        if self.tokens is not None:
            level, filled_at = self.tokens.figures()
            floats[at + _TOKENS + 1] = filled_at
            floats[at + _TOKENS] = level
        if self.share is not None:
            for i, figure in enumerate(self.share.figures(), at + _SHARE):
                floats[i] = figure
        floats[at + _IS_SET] = 1.0

    def _count(self, more: int) -> None:
        self._own += more
        if self._worker >= 0:
            self._memory.ints[self._row + self._worker] = self._own
        if not self._is_held:
            self.running = self._own


def has_any(limits: TenantLimits) -> bool:
    """Say whether a tenant is limited at all."""
    return (
        limits.concurrency is not None
        or limits.requests_per_minute is not None
        or limits.tokens_per_minute is not None
    )
