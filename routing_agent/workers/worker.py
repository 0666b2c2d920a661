"""One relay worker: carries requests; what it knows of engines and limits comes from others.

The supervisor sends tables and what it sees of engines, and gets what was counted. A worker whose
supervisor is gone accepts nothing more, ends what runs, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import structlog

from routing_agent import log as logging
from routing_agent import sockets, tls
from routing_agent.control.placements import PlacementExchange
from routing_agent.core.attention import Attention
from routing_agent.core.explain import explain
from routing_agent.core.loads import hear
from routing_agent.engine.kv_events import KvListener
from routing_agent.metrics import FinishedRequest
from routing_agent.proxy.ingress import ClientConnection
from routing_agent.proxy.server import Proxy
from routing_agent.wire import ExplainRequest, RequestRecord, RoutingTable, ShadowPair
from routing_agent.workers import messages as say
from routing_agent.workers.accepting import Acceptor
from routing_agent.workers.channel import Channel
from routing_agent.workers.counts import Counts, WorkerMetrics, written
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.gate import SharedGate
from routing_agent.workers.memory import (
    CONNECTIONS,
    OLDEST_AT,
    POOL_CELLS,
    RUNNING,
    WORKER_CELLS,
    SharedMemory,
)
from routing_agent.workers.observing import show
from routing_agent.workers.replica import SharedReplica
from routing_agent.workers.telling import Teller

log = structlog.get_logger()

TELL_PAUSE_S: Final = 0.1
LAST_WORDS_S: Final = 5.0  # for the supervisor to take what was counted last
# Longer than a request ever waits for a lease call, should the supervisor be late.
LEASE_WAIT_S: Final = 1.0
ORPHAN_DRAIN_S: Final = 600.0
VERDICTS: Final = get_args(say.Verdict)


def main(words: Sequence[str]) -> int:
    """Carry requests for an agent of several processes; started by its supervisor only."""
    parser = argparse.ArgumentParser(prog="python -m routing_agent relay-worker")
    for name in ("channel", "memory", "listener", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    given = parser.parse_args(words)
    logging.configure(given.log_level)
    sockets.raise_open_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(live(given))
    return 0


async def live(given: argparse.Namespace) -> None:
    """Serve until told to end."""
    worker = Worker(SharedMemory(given.memory, given.workers), socket.socket(fileno=given.listener))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, int)  # of a terminal: the supervisor has it too
    loop.add_signal_handler(signal.SIGTERM, worker.drain, ORPHAN_DRAIN_S)
    await worker.run(socket.socket(fileno=given.channel))


class Worker:
    """The parts of one worker, and what it does with what it is told."""

    fleet: SharedFleet
    metrics: WorkerMetrics
    proxy: Proxy
    acceptor: Acceptor
    teller: Teller
    _exchange: PlacementExchange
    number = -1

    def __init__(self, memory: SharedMemory, listener: socket.socket) -> None:
        self._memory = memory
        self._listener = listener
        self.channel: Channel[say.ToWorker] = Channel(say.ToWorker, self._told, self._orphaned)
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        self._clock_offset_s = 0.0
        self._leases: dict[int, tuple[Callable[[], None], asyncio.TimerHandle]] = {}
        self._ticket = 0
        self._draining: asyncio.Task[None] | None = None
        self._certificate: tls.ServerCertificate | None = None

    async def run(self, end: socket.socket) -> None:
        """Wait for the configuration, serve, end."""
        await self.channel.connect(end)
        await self._begun.wait()
        loops = [self._tell(), KvListener(self.fleet).run()]
        if self._certificate is not None:
            loops.append(self._certificate.watch())
        running = [asyncio.create_task(loop) for loop in loops]
        try:
            await self._ended.wait()
            self.teller.tell(time.monotonic())
            self.metrics.settle()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.channel.sent(LAST_WORDS_S)

    def wall(self) -> float:
        """Give Unix seconds by the control plane's clock."""
        return time.time() + self._clock_offset_s

    # -- told by the supervisor ----------------------------------------------------------------

    def _told(self, message: say.ToWorker) -> None:
        getattr(self, f"_take_{type(message).__name__.lower()}")(message)

    def _take_begin(self, begin: say.Begin) -> None:
        memory, self.number = self._memory, begin.number
        self.fleet = SharedFleet(memory, begin.number)
        self.fleet.node, self.fleet.given_zone = begin.place
        self.fleet.publish = self._publish
        self.fleet.bus.on_room = self._room
        self.fleet.bus.on_charge = self._charge
        self.metrics = WorkerMetrics(self._finished, self._counted)
        proxy = self.proxy = Proxy(
            self.fleet,
            self.metrics,
            chance=random.Random(),  # noqa: S311 - no secrets
            attention=Attention(),
        )
        proxy.engine_trust = tls.trust(Path(begin.engine_ca_file) if begin.engine_ca_file else None)
        proxy.keep_below = begin.keep_below
        proxy.unix_clock = self.wall
        proxy.on_record = self._keep
        if begin.keeps_pairs:
            proxy.on_pair = self._pair
        if begin.leases:
            proxy.wait_for_lease = self._wait_for_lease
        context: ssl.SSLContext | None = None
        if begin.scheme_files is not None:
            cert_file, key_file = map(Path, begin.scheme_files)
            self._certificate = tls.ServerCertificate(cert_file, key_file)
            context = self._certificate.context
        self._exchange = PlacementExchange(self.fleet)
        self.teller = Teller(self.fleet, self.channel.send)
        proxy.begin()
        self.acceptor = Acceptor(
            self._listener,
            lambda: client_of(proxy),
            context,
            (memory, begin.number),
            lambda: len(proxy.clients),
        )
        self._begun.set()
        self.channel.send(say.Ready())

    def _take_puttable(self, put: say.PutTable) -> None:
        table = msgspec.json.decode(put.content, type=RoutingTable)
        now = time.monotonic()
        self.fleet.slots = put.slots
        self.fleet.apply(table, now=now, wall=put.wall)
        self.metrics.table_applied_at = now
        self.channel.send(say.Applied(put.serial))

    def _take_serve(self, _message: say.Serve) -> None:
        gc.freeze()  # what is there by now stays: not to be looked through again and again
        self.acceptor.start()
        self.channel.send(say.Serving())

    def _take_observed(self, observed: say.Observed) -> None:
        now = time.monotonic()
        for seen in observed.replicas:
            replica = self.fleet.replicas.get(seen.replica)
            if isinstance(replica, SharedReplica):
                show(replica, seen, now)

    def _take_clock(self, clock: say.Clock) -> None:
        self._clock_offset_s = clock.offset_s

    def _take_leaseover(self, over: say.LeaseOver) -> None:
        gate = self.fleet.gates.get(over.tenant)
        if over.is_kept and isinstance(gate, SharedGate):
            gate.expect_kept()
            self._lease_over(over.ticket)
            gate.give_kept_back(over.tokens)
        else:
            self._lease_over(over.ticket)

    def _take_judged(self, judged: say.Judged) -> None:
        replica = self.fleet.replicas.get(judged.replica)
        if isinstance(replica, SharedReplica):
            replica.sibling_judged(judged.verdict, judged.at, (judged.trial, judged.may_open))

    def _take_heard(self, heard: say.Heard) -> None:
        self._exchange.hear(heard.placed, time.monotonic())
        for pool in self.fleet.pools.values():
            pool.gossip = None  # what is placed here is told by the supervisor

    def _take_heardloads(self, heard: say.HeardLoads) -> None:
        pool = self.fleet.pools.get(heard.pool)
        if pool is not None:
            hear(pool, heard.agent, heard.loads, time.monotonic())

    def _take_roommade(self, room: say.RoomMade) -> None:
        pool = self.fleet.pools.get(room.pool)
        if pool is not None:
            self.proxy.wake(pool)
            if pool.siblings is not None:
                pool.siblings.goes_first()  # there may be room for more than waited here

    def _take_charged(self, charged: say.Charged) -> None:
        pool = self.fleet.pools.get(charged.pool)
        if pool is not None:
            pool.shares.charged_elsewhere(charged.tenant, charged.amount)

    def _take_drain(self, drain: say.Drain) -> None:
        self.drain(drain.limit_s)

    def _take_stop(self, _stop: say.Stop) -> None:
        self.acceptor.close()
        task = asyncio.ensure_future(self.proxy.close())
        task.add_done_callback(lambda _: self._end(0))

    def _take_question(self, question: say.Question) -> None:
        self.channel.send(say.Answer(question.number, self._answer(question.body)))

    def _answer(self, body: bytes) -> bytes:
        if body:
            asked = msgspec.json.decode(body, type=ExplainRequest)
            return msgspec.json.encode(explain(self.fleet, asked, now=time.monotonic()))
        shares = {name: pool.shares.counters() for name, pool in self.fleet.pools.items()}
        state = {"fair_shares": shares, "bytes_per_token": self.fleet.ratios.learned()}
        return msgspec.json.encode(state)

    # -- the end -------------------------------------------------------------------------------

    def drain(self, limit_s: float) -> None:
        """Accept nothing more and end what runs."""
        if self._draining is None and self._begun.is_set():
            self.acceptor.close()
            self._draining = asyncio.ensure_future(self._drain(limit_s))

    async def _drain(self, limit_s: float) -> None:
        self._end(await self.proxy.drain(limit_s))

    def _end(self, cut: int) -> None:
        self.teller.tell(time.monotonic())
        self.metrics.settle()
        self.channel.send(say.Drained(cut))
        self._ended.set()

    def _orphaned(self) -> None:
        """End without a supervisor: nobody would learn of what comes in from now on."""
        if not self._begun.is_set():
            self._begun.set()
            self._ended.set()
        elif self._draining is None and not self._ended.is_set():
            log.error("supervisor_gone", running_requests=self.proxy.running_requests)
            for ticket in list(self._leases):
                self._lease_over(ticket)
            self.drain(ORPHAN_DRAIN_S)

    # -- told to the supervisor ----------------------------------------------------------------

    async def _tell(self) -> None:
        ints, own = self._memory.ints, self.number * WORKER_CELLS
        while True:
            await asyncio.sleep(TELL_PAUSE_S)
            ints[own + CONNECTIONS] = len(self.proxy.clients)
            ints[own + RUNNING] = self.proxy.running_requests
            self._tell_oldest()
            now = time.monotonic()
            self.fleet.bus.catch_up(now)
            for gate in self.fleet.gates.values():
                if isinstance(gate, SharedGate):
                    gate.settle()
            self.teller.tell(now)

    def _tell_oldest(self) -> None:
        now, memory = time.monotonic(), self._memory
        for one in self.proxy.waiting():
            slot = self.fleet.slots.pools.get(one.pool)
            if slot is not None:
                at = memory.pool(slot) + self.number * POOL_CELLS + OLDEST_AT
                memory.ints[at] = int((now - one.oldest_s) * 1e6)

    def _finished(self, records: list[FinishedRequest]) -> None:
        self.channel.send(say.Finished(written(records)))

    def _counted(self, counts: Counts) -> None:
        self.channel.send(
            say.Counted(
                requests=[(*key, n) for key, n in counts.requests.items()],
                retries=[(*key, n) for key, n in counts.retries.items()],
                shed=[(*key, n) for key, n in counts.shed.items()],
                spills=[(*key, n) for key, n in counts.spills.items()],
                held=dict(counts.held),
                moved=self.fleet.take_moves(),
                paths=[(*key, n) for key, n in counts.paths.items()],
                shadows=dict(counts.shadows),
                decisions=counts.decisions,
                decision_sum_s=counts.decision_sum_s,
            )
        )

    def _keep(self, record: RequestRecord) -> None:
        self.channel.send(say.Kept(record))

    def _pair(self, pair: ShadowPair) -> None:
        self.channel.send(say.Paired(pair))

    def _publish(self, replica: str, verdict: str, at: float, how: tuple[bool, bool]) -> None:
        if verdict in VERDICTS:
            trial, may_open = how
            self.channel.send(say.Judged(replica, verdict, at, trial, may_open))
        else:
            self.channel.send(say.Doubted(replica, verdict))

    def _room(self, pool: str, worker: int) -> None:
        self.channel.send(say.RoomMade(pool, worker))

    def _charge(self, pool: str, tenant: str, amount: float) -> None:
        self.channel.send(say.Charged(pool, tenant, amount))

    def _wait_for_lease(self, tenant: str, tokens: int, on_end: Callable[[], None]) -> None:
        self._ticket += 1
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LEASE_WAIT_S, self._lease_over, self._ticket)
        self._leases[self._ticket] = (on_end, timer)
        self.channel.send(say.LeaseWanted(self._ticket, tenant, tokens))

    def _lease_over(self, ticket: int) -> None:
        waiting = self._leases.pop(ticket, None)
        if waiting is not None:
            on_end, timer = waiting
            timer.cancel()
            on_end()


def client_of(proxy: Proxy) -> Any:
    """Make the protocol of one client."""
    return ClientConnection(proxy)


def loop_factory() -> Any:
    """Give the fastest event loop there is here."""
    try:
        import uvloop
    except ImportError:
        return None  # asyncio's own loop: slower, otherwise the same
    return uvloop.new_event_loop
