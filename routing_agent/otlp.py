"""Sends spans of kept requests to an OpenTelemetry collector, off the request path.

A bounded queue, one batch at a time, each with a deadline. A collector that is away or busy is
asked again, ever less often; what does not fit meanwhile is dropped, the oldest first, and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import msgspec
import structlog

from routing_agent import spans
from routing_agent.http_client import CallFailed, HttpClient, split_url
from routing_agent.wire import RequestRecord

log = structlog.get_logger()

QUEUE_LIMIT: Final = 2000  # records
BATCH: Final = 100  # records, so some 500 spans
PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
CALL_LIMIT_S: Final = 5.0
GOODBYE_LIMIT_S: Final = 2.0
SERVICE: Final = "signalbox-agent"
TRACES_PATH: Final = "/v1/traces"
_ASK_AGAIN: Final = (429, 502, 503, 504)  # as OTLP says; anything else is refused for good


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans go."""

    url: str  # of the traces, complete
    service: str = SERVICE
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a credential


def collector_of(option: str | None, environment: Mapping[str, str]) -> Collector | None:
    """Give the collector that the option or OpenTelemetry's own variables name, if any.

    Raises:
        ValueError: the address or the headers cannot be read; the message says which.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" and option is None:
        return None
    url = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    base = option or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if option or not url:
        url = f"{base.rstrip('/')}{TRACES_PATH}" if base else ""
    if not url:
        return None
    split_url(url)
    headers = environment.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environment.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    service = environment.get("OTEL_SERVICE_NAME") or SERVICE
    return Collector(url, service, _headers(headers))


def _headers(text: str) -> dict[str, str]:
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = pair.partition("=")
        value = unquote(value.strip())
        if not (separator and name.strip() and value.isprintable() and value.isascii()):
            raise ValueError("OTEL_EXPORTER_OTLP_HEADERS is not NAME=VALUE,NAME=VALUE")
        found[name.strip().lower()] = value
    return found


class SpanExporter:
    """Owns the queue; `note` never waits and never raises."""

    def __init__(self, collector: Collector, client: HttpClient, counts: Counter[str]) -> None:
        self._collector = collector
        self._client = client
        self._counts = counts  # records by what became of them: exported, export_dropped
        self._queue: deque[RequestRecord] = deque()
        self._pause_s = PAUSE_S
        self._complaint = ""

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return len(self._queue)

    def note(self, record: RequestRecord) -> None:
        """Take a record; a full queue drops its oldest."""
        if len(self._queue) >= QUEUE_LIMIT:
            self._queue.popleft()
            self._drop(1)
        self._queue.append(record)

    async def run(self) -> None:
        """Export until cancelled, then try once more for what is left."""
        try:
            while True:
                await asyncio.sleep(self._pause_s)
                while self._queue and await self.export():
                    pass
        finally:
            await self._say_goodbye()

    async def export(self) -> bool:
        """Send one batch; true if another may follow at once."""
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        if not batch:
            return False
        try:
            problem, may_come_back = await self._send(batch)
        except asyncio.CancelledError:
            self._take_back(batch)
            raise
        if not problem:
            self._counts["exported"] += len(batch)
            self._note_success()
            return True
        if may_come_back:
            self._take_back(batch)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self._drop(len(batch))
        self._note_problem(problem)
        return False

    async def _send(self, batch: list[RequestRecord]) -> tuple[str, bool]:
        """Give what went wrong ("" if nothing), and whether the batch may be sent again."""
        body = msgspec.json.encode(spans.export_request(batch, service=self._collector.service))
        headers = {**self._collector.headers, "content-type": "application/json"}
        try:
            answer = await self._client.call(
                "POST", self._collector.url, body=body, headers=headers, timeout_s=CALL_LIMIT_S
            )
        except CallFailed as error:
            return str(error), True
        if answer.ok:
            return "", False
        return f"the collector answered {answer.status}", answer.status in _ASK_AGAIN

    def _take_back(self, batch: list[RequestRecord]) -> None:
        room = QUEUE_LIMIT - len(self._queue)
        kept = batch[-room:] if room > 0 else []
        self._drop(len(batch) - len(kept))
        self._queue.extendleft(reversed(kept))

    async def _say_goodbye(self) -> None:
        deadline = time.monotonic() + GOODBYE_LIMIT_S
        try:
            async with asyncio.timeout(GOODBYE_LIMIT_S):
                while self._queue and time.monotonic() < deadline and await self.export():
                    pass
        except TimeoutError:
            self._note_problem("the collector did not answer in time at the end")
        self._drop(len(self._queue))
        self._queue.clear()

    def _drop(self, count: int) -> None:
        if count:
            self._counts["export_dropped"] += count

    def _note_problem(self, problem: str) -> None:
        if problem != self._complaint:  # said once, not every second
            log.warning("spans_not_exported", collector=self._collector.url, why=problem)
        self._complaint = problem

    def _note_success(self) -> None:
        if self._complaint:
            log.info("spans_exported_again", after=self._complaint)
        self._complaint = ""
        self._pause_s = PAUSE_S
