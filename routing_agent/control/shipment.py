"""What of a spool goes with which report: batch by batch, less often where nobody takes it."""

from __future__ import annotations

from typing import Generic

from routing_agent.control.record_spool import BATCH, RecordSpool, Spooled

PAUSE_S = 60.0  # at most, between records that are not acknowledged


class Shipment(Generic[Spooled]):
    """Records of one kind on their way to the control plane; times are monotonic seconds."""

    def __init__(self, spool: RecordSpool[Spooled] | None, *, batch: int = BATCH) -> None:
        self.spool: RecordSpool[Spooled] | None = spool
        self._batch = batch
        self._pause_s = 0.0
        self._again_at = 0.0

    def take(self, now: float) -> tuple[Spooled, ...]:
        """Give what the next report carries."""
        if self.spool is None or now < self._again_at:
            return ()
        return self.spool.take(self._batch)

    def book(self, sent: int, acknowledged: int, *, interval_s: float, now: float) -> bool:
        """Forget what is stored; true if more waits.

        A control plane that stores nothing, an older one perhaps, is not flooded with it.
        """
        if self.spool is None or not sent:
            return False
        if self.spool.acknowledge(acknowledged):
            self._pause_s = 0.0
            self._again_at = now
            return sent >= self._batch
        self._pause_s = min(2 * max(self._pause_s, interval_s), PAUSE_S)
        self._again_at = now + self._pause_s
        return False
