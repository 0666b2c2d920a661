"""The composition root: builds an agent, lets it live, drains it, stops it.

start    ports are bound, the table comes from disk or from the engines
run      probes, scrapes and reports, all children of one task group
drain    at SIGTERM or SIGINT: no new connections, running requests end, up to the drain limit
stop     a last report, files closed; a second signal stops at once
"""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from routing_agent import __version__, compiled, managed, sockets, tls
from routing_agent import log as logging
from routing_agent.config import Config, Managed, Standalone
from routing_agent.control.admin import AdminPort, Gate, LocalReading, SignedOnly
from routing_agent.control.http_server import HttpServer
from routing_agent.control.identity import RegistrationRefused
from routing_agent.core.attention import Attention
from routing_agent.core.fleet import Fleet
from routing_agent.core.sampling import threshold
from routing_agent.engine.kv_events import KvListener
from routing_agent.engine.probe import Prober
from routing_agent.engine.queue_times import QueueTimes
from routing_agent.engine.scrape import Scraper
from routing_agent.http_client import HttpClient
from routing_agent.managed import ManagedLife, StateFolderTaken
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.otlp import SpanExporter
from routing_agent.proxy.server import Proxy
from routing_agent.records import RecentRecords
from routing_agent.standalone import Discovery
from routing_agent.wire import Endpoint, RequestRecord, RoutingTable
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.memory import SUPERVISOR, SharedMemory
from routing_agent.workers.settings import settings_of
from routing_agent.workers.supervisor import Workers

log = structlog.get_logger()
T = TypeVar("T")

EXIT_DRAINED = 0
EXIT_FAILED = 1
EXIT_REFUSED = 3  # the control plane does not accept this agent: starting again will not help


def main(config: Config) -> int:
    """Run an agent to its end; gives the exit status."""
    logging.configure(config.log_level)
    log.info("open_file_limit", files=sockets.raise_open_file_limit())
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(live(config))
        except RegistrationRefused as error:
            log.error("registration_refused", why=str(error))
            return EXIT_REFUSED
        except (PortTaken, StateFolderTaken, tls.CertificateUnusable, OSError) as error:
            log.error("agent_cannot_start", why=str(error))
            return EXIT_FAILED


async def live(config: Config) -> int:
    """Start, run, drain, stop."""
    stop = StopSignals()
    stop.listen()
    parts = Parts.build(config)
    try:
        match config.role:
            case Standalone() as role:
                await _live_alone(parts, role, stop)
            case Managed() as role:
                await _live_managed(parts, role, stop)
    finally:
        await parts.client.close()
        await parts.engine_client.close()
        await parts.collector_client.close()
    log.info("agent_stopped")
    return EXIT_DRAINED


async def _live_alone(parts: Parts, role: Standalone, stop: StopSignals) -> None:
    proxy = parts.proxy()
    admin = parts.admin(LocalReading(), proxy)
    admin.records = parts.keep_records(proxy)
    async with Ports(parts, proxy, HttpServer(admin.handle)):
        discovery = Discovery(role, parts.engine_client, parts.apply)
        loops = parts.watchers() | {"discovery": discovery.run()}
        await run_until_drained(loops, proxy, parts.config.drain_limit_s, stop)


async def _live_managed(parts: Parts, role: Managed, stop: StopSignals) -> None:
    with ManagedLife(role, parts.for_control()) as life:
        proxy = parts.proxy(life.note_finished)
        proxy.unix_clock = life.clock.now  # keys expire and usage is dated by its time, not ours
        gate = SignedOnly()
        admin = parts.admin(gate, proxy)
        admin.receiver, admin.more_state = life.receiver, life.state
        admin.records = parts.keep_records(proxy)
        admin.records.pass_on_to(life.keep_record)
        proxy.on_pair = life.keep_pair
        admin.obey = life.obey if life.engines is not None else None
        if isinstance(proxy, Workers):
            proxy.shares_limits, life.receiver.settled = True, proxy.settled
        life.receiver.start_from_disk()
        identity = life.kept_identity()
        if identity is not None:  # a restart obeys pushes from the first moment
            gate.verifier = life.trust(identity)
        async with Ports(parts, proxy, HttpServer(admin.handle)) as ports:
            if identity is None:
                identity = await stop.unless_stopped(
                    life.register(ports.traffic, ports.admin, scheme=ports.scheme)
                )
            if identity is None:
                return
            verifier = gate.verifier = gate.verifier or life.trust(identity)
            await life.listen_to_peers(identity, parts.config.admin_host, ports.admin)
            reporter = life.reporter(identity, verifier, proxy)
            proxy.wait_for_lease = life.leases.wait
            queue_times = QueueTimes(parts.fleet, parts.metrics)
            loops = parts.watchers(both(queue_times.note_page, life.on_page)) | {
                "reporter": reporter.run(),
                "leases": life.leases.run(),
                "peers": life.tell_peers(),
                "gpus": life.watch_gpus(),
                "adapters": life.keeper(identity, parts.engine_client).run(),
            }
            if life.engines is not None:
                loops["engines"] = life.engines.watch()
            await run_until_drained(loops, proxy, parts.config.drain_limit_s, stop)
            await life.say_goodbye()


async def run_until_drained(
    loops: Mapping[str, Coroutine[Any, Any, None]],
    proxy: Proxy | Workers,
    limit_s: float,
    stop: StopSignals,
) -> None:
    """Run the loops until a signal, and on while running requests end; then end the loops."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(loop, name=name) for name, loop in loops.items()]
        await stop.first.wait()
        await drain(proxy, limit_s, stop)
        for task in running:
            task.cancel()


async def drain(proxy: Proxy | Workers, limit_s: float, stop: StopSignals) -> None:
    """Let running requests end, up to the limit or a second signal; then close the traffic port."""
    log.info("draining", running_requests=proxy.running_requests, limit_s=limit_s)
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(proxy.drain(limit_s))
        hurry = tasks.create_task(stop.second.wait())
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            log.info("drained", cut_off=draining.result())
        else:
            log.warning("stopped_at_once", running_requests=proxy.running_requests)
            await proxy.close()
        draining.cancel()
        hurry.cancel()


@dataclass
class StopSignals:
    """The first SIGTERM or SIGINT asks to drain, the second to stop at once."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """Take over the process's stop signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.note)

    def note(self) -> None:
        """Note one signal."""
        (self.second if self.first.is_set() else self.first).set()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await `work`, or give None as soon as a stop is asked for."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.first.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Parts:
    """What both kinds of agent are made of."""

    config: Config
    fleet: Fleet
    workers: Workers | None  # None: this process carries requests itself
    metrics: Metrics
    client: HttpClient  # to the control plane
    engine_client: HttpClient
    attention: Attention  # of the one loop that all of them run in
    collector_client: HttpClient
    certificate: tls.ServerCertificate | None
    chance: random.Random
    exporter: SpanExporter | None  # None: no collector is configured

    @classmethod
    def build(cls, config: Config) -> Parts:
        """Make the parts; nothing of them runs yet."""
        metrics, collector_client, attention = Metrics(), HttpClient(), Attention()
        exporter = None
        if config.collector is not None:
            exporter = SpanExporter(config.collector, collector_client, metrics.records)
        fleet, workers = Fleet(), None
        if config.workers > 1:
            fleet = SharedFleet(SharedMemory.create(config.workers), SUPERVISOR)
            workers = Workers(settings_of(config), fleet, metrics)
        fleet.node, fleet.given_zone = config.place
        return cls(
            config=config,
            fleet=fleet,
            workers=workers,
            metrics=metrics,
            client=HttpClient(tls=_control_trust(config.role)),
            engine_client=HttpClient(tls.trust(config.engine_ca_file), attention),
            attention=attention,
            collector_client=collector_client,
            exporter=exporter,
            certificate=tls.ServerCertificate(*config.certificate) if config.certificate else None,
            chance=random.Random(),  # noqa: S311 - no secrets
        )

    def apply(self, table: RoutingTable) -> None:
        """Put a table in place, judging its times by this machine's clock."""
        self.apply_at(table, time.time())

    def apply_at(self, table: RoutingTable, wall: float) -> None:
        """Put a table in place; rows that make no sense are left out and named in the log."""
        now = time.monotonic()
        if self.workers is not None:
            self.workers.prepare(table)
        change = self.fleet.apply(table, now=now, wall=wall)
        self.metrics.table_applied_at = now
        if self.workers is not None:
            self.workers.put(table, wall)
        for fault in change.faults:
            log.warning("table_row_left_out", epoch=table.epoch, why=fault)

    def proxy(
        self, on_finished: Callable[[FinishedRequest], None] | None = None
    ) -> Proxy | Workers:
        """Make the traffic port; it does not listen yet."""
        if self.workers is not None:
            self.workers.on_finished = on_finished
            return self.workers
        return Proxy(
            self.fleet,
            self.metrics,
            chance=self.chance,
            attention=self.attention,
            on_finished=on_finished,
        )

    def for_control(self) -> managed.Parts:
        """Give what the control side needs."""
        heard = () if self.workers is None else (self.workers.heard, self.workers.heard_loads)
        return managed.Parts(
            self.fleet, self.metrics, self.client, self.chance, self.apply_at, *heard
        )

    def admin(self, gate: Gate, proxy: Proxy | Workers) -> AdminPort:
        """Make what answers the admin port."""
        admin = AdminPort(gate, self.fleet, self.metrics, proxy)
        if isinstance(proxy, Workers):
            admin.ask, admin.workers = proxy.ask, proxy.described
        return admin

    def keep_records(self, proxy: Proxy | Workers) -> RecentRecords:
        """Let the proxy keep lives of requests; gives where the newest are."""
        records = RecentRecords(self._count_record)
        if self.exporter is not None:
            records.pass_on_to(self.exporter.note)
        proxy.keep_below = threshold(self.config.sample_ratio)
        proxy.on_record = records.note
        return records

    def _count_record(self, record: RequestRecord) -> None:
        self.metrics.records[f"kept_{record.kept}"] += 1

    def watchers(
        self, on_page: Callable[[Endpoint, str], None] | None = None
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """Give the loops that watch engines; `on_page` gets what they scrape."""
        prober = Prober(self.fleet, self.engine_client, self.chance)
        scraper = Scraper(self.fleet, self.engine_client, self.chance, on_page)
        loops = {"prober": prober.run(), "scraper": scraper.run()}
        if self.workers is None:  # else each of them follows events for its own profiles
            loops["kv_events"] = KvListener(self.fleet).run()
        if self.certificate is not None:
            loops["certificate"] = self.certificate.watch()
        if self.exporter is not None:
            loops["exporter"] = self.exporter.run()
        return loops


class PortTaken(Exception):
    """A port cannot be listened on; the message names it and the option to change it."""


class Ports:
    """The traffic port and the admin port, open while the context lasts."""

    def __init__(self, parts: Parts, proxy: Proxy | Workers, server: HttpServer) -> None:
        self._config = parts.config
        self._certificate = None if parts.certificate is None else parts.certificate.context
        self._proxy = proxy
        proxy.engine_trust = parts.engine_client.tls
        self._server = server
        self.traffic = self.admin = 0
        self.scheme = "http" if self._certificate is None else "https"  # of the traffic port

    async def __aenter__(self) -> Ports:
        config = self._config
        try:
            self.admin = await self._server.start(config.admin_host, config.admin_port)
        except OSError as error:
            where = f"{config.admin_host} port {config.admin_port}"
            raise PortTaken(f"Cannot listen on {where} ({error.strerror}): --admin-port") from None
        try:
            self.traffic = await self._proxy.start(
                config.host, config.port, certificate=self._certificate
            )
        except OSError as error:
            await self._server.close()
            where = f"{config.host} port {config.port}"
            raise PortTaken(f"Cannot listen on {where} ({error.strerror}): --port") from None
        log.info(
            "agent_listens",
            version=__version__,
            compiled=compiled.is_used(),
            traffic=f"{config.host}:{self.traffic}",
            scheme=self.scheme,
            admin=f"{config.admin_host}:{self.admin}",
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._proxy.close()
        await self._server.close()


def both(
    one: Callable[[Endpoint, str], None], other: Callable[[Endpoint, str], None] | None
) -> Callable[[Endpoint, str], None]:
    """Hand a scraped page to two readers."""
    if other is None:
        return one
    second = other

    def hand_on(endpoint: Endpoint, page: str) -> None:
        one(endpoint, page)
        second(endpoint, page)

    return hand_on


def _control_trust(role: Standalone | Managed) -> ssl.SSLContext | None:
    if isinstance(role, Standalone):
        return None
    if role.ca_file is None and role.client_cert is None:
        return None
    context = tls.trust(role.ca_file, option="--ca-file")
    if role.client_cert is not None:
        tls.show(context, role.client_cert, role.client_key)
    return context


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None  # asyncio's own loop: slower, otherwise the same
    return uvloop.new_event_loop
