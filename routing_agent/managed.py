"""An agent's life under a control plane: its state folder, its registration, its reports."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import structlog

from routing_agent import __version__
from routing_agent.config import Managed
from routing_agent.control.clock import ControlClock
from routing_agent.control.files import private_folder, write_durably
from routing_agent.control.identity import Identity, IdentityFile, Registrar
from routing_agent.control.leases import LeaseCalls, share_of
from routing_agent.control.numbers import ReportNumbers
from routing_agent.control.packages import PackageStore
from routing_agent.control.peer_port import PeerPort
from routing_agent.control.peers import OnLoads, Peers
from routing_agent.control.receiver import Receiver
from routing_agent.control.record_spool import RecordSpool
from routing_agent.control.reporter import Link, Reporter, Sources
from routing_agent.control.signatures import Verifier
from routing_agent.control.snapshot import TableStore
from routing_agent.control.spool import UsageSpool
from routing_agent.control.traffic import TrafficPort
from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.engine.keeper import AdapterKeeper
from routing_agent.engine.process import EngineProcesses
from routing_agent.gpu import GpuReader, SimulatedReadings
from routing_agent.http_client import HttpClient
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.wire import (
    Action,
    ActionReceipt,
    AgentPlaced,
    Endpoint,
    EngineProcess,
    NodeFacts,
    PeerAddress,
    RegisterRequest,
    RequestRecord,
    RoutingTable,
    ShadowPair,
)

log = structlog.get_logger()

GPU_READ_PAUSE_S = 5.0
GOODBYE_LIMIT_S = 2.0  # for the last report: a control plane that is away must not delay the exit


class StateFolderTaken(Exception):
    """Another agent works in the state folder; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the agent's traffic side shares with this life."""

    fleet: Fleet
    metrics: Metrics
    client: HttpClient
    chance: Chance
    apply: Callable[[RoutingTable, float], None]  # a table, and the control plane's time
    on_heard: Callable[[tuple[AgentPlaced, ...]], None] | None = None  # from other agents
    on_loads: OnLoads | None = None


@dataclass
class ManagedLife:
    """Everything that ties an agent to its control plane; a context that closes its files."""

    role: Managed
    parts: Parts
    clock: ControlClock = field(init=False)
    receiver: Receiver = field(init=False)
    _spool: UsageSpool = field(init=False)
    _records: RecordSpool[RequestRecord] = field(init=False)
    _pairs: RecordSpool[ShadowPair] = field(init=False)
    on_page: Callable[[Endpoint, str], None] | None = None  # takes what is scraped
    _gpus: GpuReader = field(init=False)
    _node: NodeFacts = field(init=False)
    _reporter: Reporter | None = None
    _leases: LeaseCalls | None = None
    _peer_port: PeerPort | None = None  # None: others are heard by reports and scrapes alone
    _peer: PeerAddress | None = None
    _packages: PackageStore | None = None
    engines: EngineProcesses | None = None  # None: this agent starts none
    _lock: int = field(init=False)

    def __enter__(self) -> ManagedLife:
        folder = private_folder(self.role.state_dir)
        self._lock = lock_folder(folder)
        self.clock = ControlClock(folder / "clock.json")
        self.receiver = Receiver(
            TableStore(folder / "table.json"),
            lambda table: self.parts.apply(table, self.clock.now()),
        )
        self._spool = UsageSpool(folder / "usage.jsonl")
        self._records = RecordSpool(folder / "requests.jsonl", RequestRecord)
        self._pairs = RecordSpool(folder / "shadow-pairs.jsonl", ShadowPair)
        readings = SimulatedReadings(self.role.name) if self.role.simulated_gpus else None
        self.on_page = readings.note_page if readings else None
        self._gpus = GpuReader(self.role.simulated_gpus, readings)
        if self.role.engines is not None:
            self.engines = EngineProcesses(self.role.engines, folder / "engines", write_durably)
            self.engines.adopt()
        self._read_gpus()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._spool.close()
        self._records.close()
        self._pairs.close()
        self._gpus.close()
        if self._peer_port is not None:
            self._peer_port.close()
        os.close(self._lock)

    # -- registration --------------------------------------------------------------------------

    def kept_identity(self) -> Identity | None:
        """Give the identity of an earlier start; None if this agent has to register."""
        return self._registrar().kept(self.role.token, adopt=self.role.adopt)

    async def register(self, traffic_port: int, admin_port: int, *, scheme: str) -> Identity:
        """Register this agent; waits for the control plane."""
        host = self.role.advertise_host
        host = f"[{host}]" if ":" in host else host
        request = RegisterRequest(
            token=self.role.token,
            name=self.role.name,
            traffic_url=f"{scheme}://{host}:{traffic_port}",
            admin_url=f"http://{host}:{admin_port}",
            agent_version=__version__,
            node=self._node,
        )
        return await self._registrar().register(request)

    def _registrar(self) -> Registrar:
        return Registrar(
            control_plane=self.role.control_plane,
            client=self.parts.client,
            clock=self.clock,
            file=IdentityFile(self.role.state_dir / "identity.json"),
            chance=self.parts.chance,
        )

    def trust(self, identity: Identity) -> Verifier:
        """Obey this control plane from now on; gives what checks its signatures."""
        self.receiver.trust(identity.lineage)
        return Verifier(identity.public_key, self.clock)

    # -- other agents --------------------------------------------------------------------------

    async def listen_to_peers(self, identity: Identity, host: str, port: int) -> None:
        """Open the port on which other agents tell their load, unless none is wanted.

        Args:
            port: what the admin port is, for where nothing else was asked for.
        """
        wanted = port if self.role.peer_port is None else self.role.peer_port
        if not wanted:
            return
        peers = Peers(self.parts.fleet, identity.agent, self.parts.on_loads)
        opened = PeerPort(peers)
        bound = await opened.open(host, wanted)
        if bound:
            self._peer_port = opened
            self._peer = PeerAddress(host=self.role.advertise_host, port=bound, key=peers.key)

    async def tell_peers(self) -> None:
        """Tell other agents what is under way here, until cancelled."""
        if self._peer_port is not None:
            await self._peer_port.run()

    # -- reports -------------------------------------------------------------------------------

    def reporter(self, identity: Identity, verifier: Verifier, traffic: TrafficPort) -> Reporter:
        """Make the reporter of this life."""
        link = Link(
            control_plane=self.role.control_plane,
            identity=identity,
            client=self.parts.client,
            clock=self.clock,
            verifier=verifier,
            receiver=self.receiver,
        )
        sources = Sources(
            fleet=self.parts.fleet,
            metrics=self.parts.metrics,
            spool=self._spool,
            numbers=ReportNumbers(self.role.state_dir / "numbers.json"),
            node=lambda: self._node,
            traffic=traffic,
            records=self._records,
            pairs=self._pairs,
            engines=self._engine_reports,
            on_heard=self.parts.on_heard,
            peers=None if self._peer_port is None else self._peer_port.peers,
            peer=lambda: self._peer,
        )
        reporter = self._reporter = Reporter(link, sources, self.parts.chance)
        self._leases = LeaseCalls(
            link,
            self.parts.fleet,
            start=ReportNumbers(self.role.state_dir / "starts.json").next(),
            reported_at=lambda: reporter.last_success_at,
            counts=self.parts.metrics.leases,
        )
        return reporter

    @property
    def leases(self) -> LeaseCalls:
        """The lease calls of this life; made with the reporter."""
        assert self._leases is not None  # noqa: S101 - asked for too early
        return self._leases

    def note_finished(self, request: FinishedRequest) -> None:
        """Take down what a finished request used."""
        self._spool.add(request)

    def keep_record(self, record: RequestRecord) -> None:
        """Keep the life of a request until the control plane has it."""
        self._records.add(record)

    def keep_pair(self, pair: ShadowPair) -> None:
        """Keep two compared answers until the control plane has them."""
        self._pairs.add(pair)

    async def say_goodbye(self) -> None:
        """Send a last report, so that nothing counted waits for the next start."""
        if self._reporter is None:
            return
        try:
            async with asyncio.timeout(GOODBYE_LIMIT_S):
                if self._leases is not None:
                    await self._leases.give_all_back()
                await self._reporter.report()
        except TimeoutError:
            log.warning("last_report_not_sent", why="the control plane did not answer")

    # -- adapters of this node ------------------------------------------------------------------

    def keeper(self, identity: Identity, engine_client: HttpClient) -> AdapterKeeper:
        """Make what holds the adapters of this node's replicas as the table wants them."""
        parts = self.parts
        packages = self._packages = PackageStore(
            folder=self.role.adapter_dir,
            limit_bytes=self.role.adapter_cache_bytes,
            url=self.role.control_plane,
            token=identity.agent_token,
            client=parts.client,
            metrics=parts.metrics,
        )
        keeper = AdapterKeeper(
            node=self.role.name,
            fleet=parts.fleet,
            client=engine_client,
            packages=packages,
            metrics=parts.metrics,
            chance=parts.chance,
        )
        packages.in_use = keeper.digests_in_use
        return keeper

    # -- engines of this node -------------------------------------------------------------------

    async def obey(self, action: Action) -> ActionReceipt:
        """Start or stop an engine; what expires does so by the control plane's time."""
        assert self.engines is not None  # noqa: S101 - only then this is offered
        return await self.engines.obey(action, self.clock.now())

    def _engine_reports(self) -> tuple[EngineProcess, ...]:
        return self.engines.report() if self.engines is not None else ()

    # -- the node ------------------------------------------------------------------------------

    async def watch_gpus(self) -> None:
        """Read the GPUs until cancelled."""
        while True:
            await asyncio.to_thread(self._read_gpus)
            await asyncio.sleep(GPU_READ_PAUSE_S)

    def state(self) -> dict[str, object]:
        """Give what `GET /agent/v1/state` adds under a control plane."""
        reporter = self._reporter
        last = reporter.last_success_at if reporter else None
        return {
            "agent": reporter.link.identity.agent if reporter else "",
            "control_clock": {"now": self.clock.now(), "source": self.clock.source},
            "last_report_age_s": None if last is None else time.monotonic() - last,
            "last_report_error": reporter.last_error if reporter else "",
            "lease_calls": self._leases.calls if self._leases else 0,
            "last_lease_error": self._leases.last_error if self._leases else "",
            "limits": self._limits(),
            "usage_pending": self._spool.pending,
            "usage_dropped": self._spool.dropped,
            "records_pending": self._records.pending,
            "records_dropped": self._records.dropped,
            "shadow_pairs_pending": self._pairs.pending,
            "shadow_pairs_dropped": self._pairs.dropped,
            "engines": self._engine_reports(),
            "adapters": self._adapters(),
            "peers": self._peers(),
        }

    def _peers(self) -> dict[str, object]:
        port = self._peer_port
        return {} if port is None else port.peers.state(time.monotonic())

    def _adapters(self) -> dict[str, object]:
        packages = self._packages
        if packages is None:
            return {}
        return {
            "folder": str(packages.folder),
            "limit_bytes": packages.limit_bytes,
            "used_bytes": packages.used_bytes(),
        }

    def _limits(self) -> list[dict[str, object]]:
        """Give what is in hand of each limit that holds over several agents."""
        now = time.monotonic()
        told: list[dict[str, object]] = []
        for name, gate in self.parts.fleet.gates.items():
            with share_of(gate) as share:
                if share is not None:
                    told.append(
                        {
                            "tenant": name,
                            "running": gate.running,
                            "slots": share.slots,
                            "requests": share.requests,
                            "tokens": share.tokens,
                            "lease_ends_in_s": max(share.until - now, 0.0),
                            "left_alone": share.is_left_alone(gate.limits, now),
                            "reason": share.reason,
                        }
                    )
        return told

    def _read_gpus(self) -> None:
        readings = self._gpus.read()
        self.parts.metrics.gpus = readings.gpus
        self._node = NodeFacts(
            hostname=socket.gethostname(),
            zone=self.role.zone,
            driver_version=readings.driver_version,
            cuda_version=readings.cuda_version,
            gpus=readings.gpus,
            executor=self.role.engines.facts if self.role.engines is not None else None,
        )


def lock_folder(folder: Path) -> int:
    """Claim a state folder for this process; gives the descriptor that holds the claim."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StateFolderTaken(
            f"Another agent runs with --state-dir {folder}. Stop it, or give this one another."
        ) from None
    return descriptor
