"""The newest lives of requests in memory, and whoever else wants each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from routing_agent.wire import RequestRecord

RECENT: Final = 500  # about a megabyte

Sink = Callable[[RequestRecord], None]


class RecentRecords:
    """Keeps the newest records and passes each one on."""

    def __init__(self, *sinks: Sink) -> None:
        self._recent: deque[RequestRecord] = deque(maxlen=RECENT)
        self._sinks = list(sinks)

    def pass_on_to(self, sink: Sink) -> None:
        """Give every further record to `sink` as well."""
        self._sinks.append(sink)

    def note(self, record: RequestRecord) -> None:
        """Take a record."""
        self._recent.append(record)
        for sink in self._sinks:
            sink(record)

    def newest(self, limit: int) -> list[RequestRecord]:
        """Give the newest records, the newest first."""
        return list(self._recent)[: -limit - 1 : -1]

    def find(self, request_id: str) -> RequestRecord | None:
        """Give the newest record of a request id."""
        return next((r for r in reversed(self._recent) if r.request_id == request_id), None)
