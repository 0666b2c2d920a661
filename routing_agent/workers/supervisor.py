"""The traffic side of an agent of several processes: starts workers, tells them, adds them up.

It stands where the proxy of a single process stands: the same start, drain and close, the same
things to be told of finished requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog

from routing_agent.core.sampling import DEFAULT_THRESHOLD
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.proxy.server import BACKLOG
from routing_agent.wire import AgentPlaced, PoolWaiting, RequestRecord, RoutingTable, ShadowPair
from routing_agent.workers import looking
from routing_agent.workers import messages as say
from routing_agent.workers.absorbing import Sums
from routing_agent.workers.asking import Questions
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.gate import SharedGate
from routing_agent.workers.memory import CONNECTIONS, RUNNING
from routing_agent.workers.observing import Observer
from routing_agent.workers.process import WorkerProcess
from routing_agent.workers.replica import SharedReplica
from routing_agent.workers.settings import WorkerSettings
from routing_agent.workers.slots import SlotGiver

log = structlog.get_logger()

OBSERVE_PAUSE_S: Final = 0.1
FIRST_PAUSE_S: Final = 0.1  # before a worker that ended is started again
LONGEST_PAUSE_S: Final = 5.0
STABLE_S: Final = 30.0  # one that ran for so long is started again at once
START_LIMIT_S: Final = 120.0
APPLY_LIMIT_S: Final = 10.0
END_LIMIT_S: Final = 5.0  # after a drain's limit, or a stop


class Workers:
    """The workers of one agent."""

    def __init__(
        self,
        settings: WorkerSettings,
        fleet: SharedFleet,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.metrics = metrics
        self.unix_clock: Callable[[], float] = time.time
        self.on_record: Callable[[RequestRecord], None] | None = None
        self.on_pair: Callable[[ShadowPair], None] | None = None
        self.keep_below = DEFAULT_THRESHOLD
        self.wait_for_lease: Callable[[str, int, Callable[[], None]], None] | None = None
        self.engine_trust: ssl.SSLContext | None = None  # each worker loads it itself
        self.shares_limits = False
        self._sums = Sums(fleet, metrics)
        self._slots = SlotGiver(fleet.memory)
        self._observer = Observer(fleet)
        self._listener: socket.socket | None = None
        self._workers: list[WorkerProcess] = []
        self._table: say.PutTable | None = None
        self._serial = 0
        self._is_draining = False
        self._changed = asyncio.Event()  # something of some worker did
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock_offset_s = 0.0
        self._is_closed = self._is_listening = False
        self._questions = Questions()

    # -- life ----------------------------------------------------------------------------------

    async def start(
        self, host: str, port: int, *, certificate: ssl.SSLContext | None = None
    ) -> int:
        """Listen, start all workers, wait until they serve; give the port (as of port 0)."""
        listener = self._listener = await _listen(host, port)
        self._workers = [self._make(number) for number in range(self.settings.workers)]
        await asyncio.gather(*(self._begin(worker) for worker in self._workers))
        self._keep(self._observe())
        async with asyncio.timeout(START_LIMIT_S):
            await self._until(lambda: all(w.is_ready or w.is_gone for w in self._workers))
            if not any(worker.is_ready for worker in self._workers):
                raise OSError(0, "no worker process could be started; the log says why")
            listener.listen(BACKLOG)  # not before: an open port is one that is served
            self._is_listening = True
            self._tell_all(say.Serve())
            await self._until(lambda: any(w.serves for w in self._workers))
        bound: int = listener.getsockname()[1]
        return bound

    async def drain(self, timeout_s: float) -> int:
        """Accept nothing more and let running requests end; give how many had to be cut off."""
        self._is_draining = True
        self._close_listener()
        self._tell_all(say.Drain(timeout_s))
        try:
            async with asyncio.timeout(timeout_s + END_LIMIT_S):
                await self._until(lambda: all(w.is_gone for w in self._workers))
        except TimeoutError:
            log.error("workers_do_not_end", workers=[w.pid for w in self._running()])
        await self.close()
        return sum(worker.drained or 0 for worker in self._workers)

    async def close(self) -> None:
        """End everything at once, with an explicit error to clients that still wait."""
        self._is_draining = True
        self._close_listener()
        if self._is_closed:
            return
        self._is_closed = True
        self._tell_all(say.Stop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_LIMIT_S):
                await self._until(lambda: all(w.is_gone for w in self._workers))
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in self._workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def on_finished(self) -> Callable[[FinishedRequest], None] | None:
        """Who is told of every finished request."""
        return self._sums.on_finished

    @on_finished.setter
    def on_finished(self, told: Callable[[FinishedRequest], None] | None) -> None:
        self._sums.on_finished = told

    # -- what the admin port and reports tell --------------------------------------------------

    @property
    def open_connections(self) -> int:
        """How many client connections are open."""
        return looking.total(self.fleet.memory, CONNECTIONS)

    @property
    def running_requests(self) -> int:
        """How many requests are queued or under way."""
        return looking.total(self.fleet.memory, RUNNING)

    @property
    def is_draining(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._is_draining

    def waiting(self) -> tuple[PoolWaiting, ...]:
        """Say who waits in which pool's queue."""
        return looking.waiting(self.fleet)

    def described(self) -> list[dict[str, object]]:
        """Describe each worker."""
        return looking.described(self.fleet.memory, self._workers)

    async def ask(self, body: bytes) -> bytes | None:
        """Ask a worker what it would choose, or b"" for its state; None: none has answered."""
        worker = next((worker for worker in self._workers if worker.serves), None)
        if worker is None:
            return None
        return await self._questions.ask(worker, body)

    def heard(self, placed: tuple[AgentPlaced, ...]) -> None:
        """Let the workers know what other agents placed."""
        self._tell_all(say.Heard(placed))

    # -- tables --------------------------------------------------------------------------------

    def prepare(self, table: RoutingTable) -> None:
        """Give cells to all that a table names, before it is put in place here."""
        self.fleet.slots = self._slots.follow(table)

    def put(self, table: RoutingTable, wall: float) -> None:
        """Send a table that is in place here to the workers; see `settled`."""
        self._serial += 1
        content = msgspec.json.encode(table)
        self._table = say.PutTable(self._serial, content, wall, self.fleet.slots)
        self._tell_all(self._table)
        self._tell_all(say.Observed(self._observer.all()))

    async def settled(self) -> None:
        """Wait until the newest table is in place in every worker that runs."""
        serial = self._serial
        try:
            async with asyncio.timeout(APPLY_LIMIT_S):
                await self._until(lambda: all(w.applied >= serial for w in self._running()))
        except TimeoutError:
            for worker in self._running():
                if worker.applied < serial:
                    log.error("worker_hangs", worker=worker.number, pid=worker.pid)
                    worker.kill()

    # -- workers -------------------------------------------------------------------------------

    def _make(self, number: int) -> WorkerProcess:
        return WorkerProcess(number, self._told, self._gone)

    async def _begin(self, worker: WorkerProcess) -> None:
        """Start a worker and tell it all that it needs."""
        listener, settings = self._listener, self.settings
        if listener is None:
            worker.is_gone = True
            return
        worker.started_at = time.monotonic()
        await worker.start(self.fleet.memory, listener, settings.log_level)
        worker.send(
            say.Begin(
                workers=settings.workers,
                number=worker.number,
                scheme_files=settings.certificate,
                engine_ca_file=settings.engine_ca_file,
                place=settings.place,
                keep_below=self.keep_below,
                leases=self.shares_limits,
                keeps_pairs=self.on_pair is not None,
            )
        )
        worker.send(say.Clock(self._clock_offset_s))
        if self._table is not None:
            worker.send(self._table)
            worker.send(say.Observed(self._observer.all()))

    def _gone(self, worker: WorkerProcess) -> None:
        self.fleet.memory.forget_worker(worker.number, self._slots.used)
        self._sums.forget(worker.number)
        self._changed.set()
        if worker in self._workers and not self._is_draining:
            self._keep(self._again(worker))

    async def _again(self, worker: WorkerProcess) -> None:
        """Start another one in place of a worker that ended."""
        status = await worker.wait()
        ran_s = time.monotonic() - worker.started_at
        log.error("worker_ended", worker=worker.number, pid=worker.pid, status=status)
        pause_s = FIRST_PAUSE_S if ran_s > STABLE_S else worker.pause_s
        await asyncio.sleep(pause_s)
        if self._is_draining:
            return
        new = self._make(worker.number)
        new.pause_s = FIRST_PAUSE_S if ran_s > STABLE_S else min(2 * pause_s, LONGEST_PAUSE_S)
        self._workers[worker.number] = new
        try:
            await self._begin(new)
        except OSError as error:
            log.error("worker_not_started", worker=worker.number, why=str(error))
            self._gone(new)

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if not worker.is_gone]

    def _tell_all(self, message: say.Message, but: WorkerProcess | None = None) -> None:
        for worker in self._running():
            if worker is not but:
                worker.send(message)

    # -- told by workers -----------------------------------------------------------------------

    def _told(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        match message:
            case say.Finished():
                self._sums.finished(message)
            case say.Counted():
                self._sums.counted(message)
            case say.AtReplicas():
                self._sums.at_replicas(worker.number, message)
            case say.Kept() if self.on_record is not None:
                self.on_record(message.record)
            case say.Paired() if self.on_pair is not None:
                self.on_pair(message.pair)
            case say.LeaseWanted():
                self._lease(worker, message)
            case say.Charged():
                self._charged(worker, message)
            case _:
                self._told_rarely(worker, message)

    def _told_rarely(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        match message:
            case say.Judged():
                self._judged(worker, message)
            case say.Doubted():
                self._doubted(message)
            case say.AdapterLost():
                self._lost(message)
            case say.RoomMade():
                self._workers[message.worker].send(message)
            case say.Answer():
                self._questions.answered(message)
            case _:
                self._lives(worker, message)

    def _lives(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        match message:
            case say.Applied():
                worker.applied = message.serial
            case say.Ready():
                worker.is_ready = True
                if self._is_listening:
                    worker.send(say.Serve())
            case say.Serving():
                worker.serves = True
                log.info("worker_serves", worker=worker.number, pid=worker.pid)
            case say.Drained():
                worker.drained = message.cut
        self._changed.set()

    def _lease(self, worker: WorkerProcess, wanted: say.LeaseWanted) -> None:
        def over() -> None:
            gate = self.fleet.gates.get(wanted.tenant)
            is_kept = (
                isinstance(gate, SharedGate)
                and not worker.is_gone
                and gate.keep(wanted.tokens, time.monotonic(), worker.number)
            )
            worker.send(say.LeaseOver(wanted.ticket, wanted.tenant, wanted.tokens, is_kept))

        if self.wait_for_lease is None:
            over()
        else:
            self.wait_for_lease(wanted.tenant, wanted.tokens, over)

    def _judged(self, worker: WorkerProcess, judged: say.Judged) -> None:
        self._tell_all(judged, but=worker)
        replica = self.fleet.replicas.get(judged.replica)
        if isinstance(replica, SharedReplica):
            replica.sibling_judged(judged.verdict, judged.at, (judged.trial, judged.may_open))

    def _lost(self, lost: say.AdapterLost) -> None:
        replica = self.fleet.replicas.get(lost.replica)
        if replica is not None:
            replica.adapters.note_lost(lost.adapter, time.monotonic())

    def _charged(self, worker: WorkerProcess, charged: say.Charged) -> None:
        self._tell_all(charged, but=worker)
        pool = self.fleet.pools.get(charged.pool)
        if pool is not None:
            pool.shares.charged_elsewhere(charged.tenant, charged.amount)

    def _doubted(self, doubted: say.Doubted) -> None:
        replica = self.fleet.replicas.get(doubted.replica)
        if replica is not None:
            replica.note_doubt("answers", doubted.reason)

    # -- loops ---------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Tell the workers what is new of engines, and follow the control plane's clock."""
        while True:
            await asyncio.sleep(OBSERVE_PAUSE_S)
            self.fleet.look()
            self.fleet.bus.catch_up(time.monotonic())
            news = self._observer.news()
            if news:
                self._tell_all(say.Observed(news))
            offset_s = self.unix_clock() - time.time()
            if abs(offset_s - self._clock_offset_s) > 0.01:
                self._clock_offset_s = offset_s
                self._tell_all(say.Clock(offset_s))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


async def _listen(host: str, port: int) -> socket.socket:
    """Bind the port that all workers accept from."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
