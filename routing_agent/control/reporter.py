"""Reports to the control plane every two seconds, and pulls the table when the answer says so.

A report that got no answer is sent again under the same number with the same deltas and usage, and
fresh state, until the control plane has it: so each delta is booked exactly once, however often a
request or an answer is lost. What happens meanwhile waits in the counters for the next number.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from routing_agent import __version__, wire
from routing_agent.control.clock import ControlClock
from routing_agent.control.identity import Identity, error_text
from routing_agent.control.numbers import ReportNumbers
from routing_agent.control.peers import Peers
from routing_agent.control.placements import PlacementExchange
from routing_agent.control.receiver import Receiver
from routing_agent.control.record_spool import RecordSpool
from routing_agent.control.shipment import Shipment
from routing_agent.control.signatures import SignatureRefused, Verifier
from routing_agent.control.spool import BATCH, UsageSpool
from routing_agent.control.traffic import TrafficPort
from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica_report import report_of
from routing_agent.http_client import CallFailed, HttpClient, Response
from routing_agent.metrics import Metrics

log = structlog.get_logger()

REPORT_PATH = "/api/v1/agent/report"
TABLE_PATH = "/api/v1/agent/table"
CALL_LIMIT_S = 5.0
JITTER_RATIO = 0.1
USAGE_PAUSE_S = 60.0  # at most, between usage or other records that are not acknowledged
PAIRS_BATCH = 25  # 24 KB each where prompts are kept
COVERS_AT_MOST_S = 3600.0  # the control plane keeps no finer figures of what is older
HURRY_S = 0.1  # pause before a report that should not wait: backlog, or news of a new table


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How this agent talks with its control plane."""

    control_plane: str  # base URL without a trailing slash
    identity: Identity
    client: HttpClient
    clock: ControlClock
    verifier: Verifier
    receiver: Receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a report's content comes from."""

    fleet: Fleet
    metrics: Metrics
    spool: UsageSpool
    numbers: ReportNumbers
    node: Callable[[], wire.NodeFacts]
    traffic: TrafficPort
    records: RecordSpool[wire.RequestRecord] | None = None  # lives of requests
    pairs: RecordSpool[wire.ShadowPair] | None = None  # compared answers
    engines: Callable[[], tuple[wire.EngineProcess, ...]] = tuple
    on_heard: Callable[[tuple[wire.AgentPlaced, ...]], None] | None = None  # from other agents
    peers: Peers | None = None  # whom this one tells directly
    peer: Callable[[], wire.PeerAddress | None] = lambda: None  # where it hears them


@dataclass
class Reporter:
    """Owns the report that is under way."""

    link: Link
    sources: Sources
    chance: Chance
    last_success_at: float | None = None  # monotonic
    last_error: str = ""
    _unsent: wire.Report | None = None
    _interval_s: float = field(init=False)
    _started_at: float = field(default_factory=time.time)
    _started_mono: float = field(default_factory=time.monotonic)
    _taken_at: float = field(init=False)  # monotonic; when deltas were last taken
    _hurry: bool = False
    _usage_pause_s: float = 0.0
    _usage_again_at: float = 0.0  # monotonic
    _exchange: PlacementExchange = field(init=False)
    _records: Shipment[wire.RequestRecord] = field(init=False)
    _pairs: Shipment[wire.ShadowPair] = field(init=False)

    def __post_init__(self) -> None:
        self._interval_s = self.link.identity.report_interval_s
        self._taken_at = self._started_mono
        self._exchange = PlacementExchange(self.sources.fleet)
        self._exchange.on_heard = self.sources.on_heard
        self._records = Shipment(self.sources.records)
        self._pairs = Shipment(self.sources.pairs, batch=PAIRS_BATCH)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report()
            await asyncio.sleep(self._pause_s())

    async def report(self) -> bool:
        """Send one report; true if the control plane has it."""
        self._hurry = False
        resent = self._unsent is not None
        if self._unsent is None:
            self._unsent = await self._compose()
        report = self._with_fresh_state(self._unsent)
        asked_at = time.monotonic()
        try:
            response = await self._call("POST", REPORT_PATH, msgspec.json.encode(report))
            reply = self._read_reply(response)
        except CallFailed as error:
            self._note_failure(str(error))
            return False
        self.link.clock.learn(reply.server_time, asked_at=asked_at, answered_at=time.monotonic())
        self._unsent = None
        self._hurry = resent
        self._note_success()
        self._interval_s = reply.report_interval_s
        await self._book_usage(report, reply.usage_acknowledged)
        self._book_records(report, reply)
        self._exchange.hear(reply.others, time.monotonic())
        if self.sources.peers is not None:
            self.sources.peers.learn(reply.others, time.monotonic())
        await self._follow(reply)
        return True

    async def pull(self) -> None:
        """Fetch the newest table, check that our control plane signed it, and hand it on."""
        try:
            response = await self._call("GET", TABLE_PATH, None)
        except CallFailed as error:
            log.warning("table_pull_failed", why=str(error))
            return
        if response.status != 200:
            log.warning("table_pull_failed", status=response.status, why=error_text(response.body))
            return
        try:
            self.link.verifier.check(
                method="GET", path=TABLE_PATH, body=response.body, headers=response.headers
            )
        except SignatureRefused as error:
            log.error("table_pull_refused", code=error.code, why=error.message)
            return
        try:
            receipt = await self.link.receiver.receive(response.body, "pull")
        except OSError as error:
            log.error("table_not_stored", error=str(error))
            return
        self._hurry = self._hurry or receipt.outcome == "applied"

    # -- composing -----------------------------------------------------------------------------

    async def _compose(self) -> wire.Report:
        """Take what must be booked once: deltas and usage, under a number of their own."""
        is_time_for_usage = time.monotonic() >= self._usage_again_at
        usage = await self.sources.spool.take() if is_time_for_usage else ()
        number = await asyncio.to_thread(self.sources.numbers.next)
        pools, tenants = self.sources.metrics.take_deltas()
        before, self._taken_at = self._taken_at, time.monotonic()
        return wire.Report(
            agent=self.link.identity.agent,
            number=number,
            started_at=self._started_at,
            sent_at=time.time(),
            covers_s=min(self._taken_at - before, COVERS_AT_MOST_S),
            agent_version=__version__,
            pools=pools,
            tenants=tenants,
            usage=usage,
            placed=self._exchange.take(self._taken_at),
            peer=self.sources.peer(),
            records=self._records.take(self._taken_at),
            shadow_pairs=self._pairs.take(self._taken_at),
        )

    def _with_fresh_state(self, report: wire.Report) -> wire.Report:
        now = time.monotonic()
        running, sources = self.link.receiver.table, self.sources
        return msgspec.structs.replace(
            report,
            sent_at=time.time(),
            taken_ago_s=now - self._taken_at,
            uptime_s=now - self._started_mono,
            lineage=running.lineage if running else "",
            epoch=running.epoch if running else 0,
            digest=running.digest if running else "",
            table_source=self.link.receiver.source,
            draining=sources.traffic.is_draining,
            node=sources.node(),
            replicas=tuple(report_of(r, now) for r in sources.fleet.replicas.values()),
            engines=sources.engines(),
            waiting=sources.traffic.waiting(),
            paths=sources.metrics.paths_report(),
            shadow_copies=dict(sources.metrics.shadows),
            leases=sources.metrics.leases.report(),
            open_connections=sources.traffic.open_connections,
            memory_bytes=resident_bytes(),
        )

    # -- talking -------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, body: bytes | None) -> Response:
        return await self.link.client.call(
            method,
            self.link.control_plane + path,
            body=body,
            headers={
                "authorization": f"Bearer {self.link.identity.agent_token}",
                "content-type": "application/json",
            },
            timeout_s=CALL_LIMIT_S,
        )

    def _read_reply(self, response: Response) -> wire.ReportReply:
        if response.status in (401, 403):
            raise CallFailed(
                f"the control plane does not know this agent's token any more ({response.status}): "
                f"{error_text(response.body)} Register it again with a new token and --adopt."
            )
        if response.status in (400, 413, 422):
            self._unsent = None  # it would be refused for ever
            raise CallFailed(
                f"the control plane cannot take this report ({response.status}): "
                f"{error_text(response.body)} Its counters are lost; do the versions fit?"
            )
        if not response.ok:
            raise CallFailed(f"the control plane answered {response.status}")
        try:
            return msgspec.json.decode(response.body, type=wire.ReportReply)
        except msgspec.MsgspecError as error:
            raise CallFailed(f"the control plane's answer cannot be read: {error}") from None

    async def _book_usage(self, report: wire.Report, acknowledged: int) -> None:
        """Forget what is stored. A control plane that stores nothing is not flooded with it."""
        before = self.sources.spool.pending
        await self.sources.spool.acknowledge(acknowledged)
        if not report.usage:
            return
        if self.sources.spool.pending < before:
            self._usage_pause_s = 0.0
            self._hurry = self._hurry or len(report.usage) >= BATCH
        else:
            longer_s = 2 * max(self._usage_pause_s, self._interval_s)
            self._usage_pause_s = min(longer_s, USAGE_PAUSE_S)
        self._usage_again_at = time.monotonic() + self._usage_pause_s

    def _book_records(self, report: wire.Report, reply: wire.ReportReply) -> None:
        """Forget what is stored, and send less often what an older control plane does not take."""
        now = time.monotonic()
        more = (
            self._records.book(
                len(report.records),
                reply.records_acknowledged,
                interval_s=self._interval_s,
                now=now,
            ),
            self._pairs.book(
                len(report.shadow_pairs),
                reply.shadow_pairs_acknowledged,
                interval_s=self._interval_s,
                now=now,
            ),
        )
        self._hurry = self._hurry or any(more)

    async def _follow(self, reply: wire.ReportReply) -> None:
        trusted = self.link.identity.lineage
        if reply.lineage != trusted:
            self._note_failure(
                f"the control plane now has lineage {reply.lineage!r}, this agent is registered "
                f"with {trusted!r}: register it again with a new token and --adopt"
            )
            return
        running = self.link.receiver.table
        behind = running is None or running.lineage != trusted or running.epoch < reply.epoch
        if behind and reply.epoch > 0:
            await self.pull()

    # -- telling -------------------------------------------------------------------------------

    def _pause_s(self) -> float:
        if self._hurry:
            return HURRY_S
        return self._interval_s * (1 + JITTER_RATIO * (2 * self.chance.random() - 1))

    def _note_failure(self, why: str) -> None:
        if why != self.last_error:  # said once, not every two seconds
            log.warning("report_failed", why=why)
        self.last_error = why

    def _note_success(self) -> None:
        if self.last_error:
            log.info("report_works_again", after=self.last_error)
        self.last_error = ""
        self.last_success_at = time.monotonic()


def resident_bytes() -> int | None:
    """Give this process's resident memory; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
