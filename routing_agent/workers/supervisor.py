"""The traffic side of an agent of several processes: starts workers, tells them, adds them up.

It stands where the proxy of a single process stands: the same start, drain and close, the same
things to be told of finished requests.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from routing_agent.core.loads import Loads
from routing_agent.core.sampling import DEFAULT_THRESHOLD
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.proxy.server import BACKLOG
from routing_agent.wire import AgentPlaced, PoolWaiting, RequestRecord, RoutingTable, ShadowPair
from routing_agent.workers import looking
from routing_agent.workers import messages as say
from routing_agent.workers.crew import END_LIMIT_S, Crew, bind
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.hearing import Hearing
from routing_agent.workers.memory import CONNECTIONS, RUNNING
from routing_agent.workers.observing import Observer
from routing_agent.workers.process import WorkerProcess
from routing_agent.workers.settings import WorkerSettings
from routing_agent.workers.slots import SlotGiver

log = structlog.get_logger()

OBSERVE_PAUSE_S: Final = 0.1
START_LIMIT_S: Final = 120.0
APPLY_LIMIT_S: Final = 10.0


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
        self.keep_below = DEFAULT_THRESHOLD
        self.engine_trust: ssl.SSLContext | None = None  # each worker loads it itself
        self.shares_limits = False
        self._hearing = Hearing(fleet, metrics)
        self._crew = self._hearing.crew = Crew(
            fleet.memory, settings.log_level, self._greet, self._hearing.take, self._gone
        )
        self._slots = SlotGiver(fleet.memory)
        self._observer = Observer(fleet)
        self._table: say.PutTable | None = None
        self._serial = 0
        self._is_draining = self._is_closed = False
        self._observing: asyncio.Task[None] | None = None
        self._clock_offset_s = 0.0

    # -- life ----------------------------------------------------------------------------------

    async def start(
        self, host: str, port: int, *, certificate: ssl.SSLContext | None = None
    ) -> int:
        """Listen, start all workers, wait until they serve; give the port (as of port 0)."""
        listener, crew = await bind(host, port), self._crew
        await crew.start(self.settings.workers, listener)
        self._observing = asyncio.get_running_loop().create_task(self._observe())
        async with asyncio.timeout(START_LIMIT_S):
            await crew.until(lambda: all(w.is_ready or w.is_gone for w in crew.workers))
            if not any(worker.is_ready for worker in crew.workers):
                raise OSError(0, "no worker process could be started; the log says why")
            listener.listen(BACKLOG)  # not before: an open port is one that is served
            self._hearing.is_listening = True
            crew.tell(say.Serve())
            await crew.until(lambda: any(w.serves for w in crew.workers))
        bound: int = listener.getsockname()[1]
        return bound

    async def drain(self, timeout_s: float) -> int:
        """Accept nothing more and let running requests end; give how many had to be cut off."""
        crew, self._is_draining = self._crew, True
        crew.last_ones()
        crew.tell(say.Drain(timeout_s))
        if not await crew.all_gone(timeout_s + END_LIMIT_S):
            log.error("workers_do_not_end", workers=[w.pid for w in crew.running])
        await self.close()
        return sum(worker.drained or 0 for worker in crew.workers)

    async def close(self) -> None:
        """End everything at once, with an explicit error to clients that still wait."""
        self._is_draining = True
        self._crew.last_ones()
        if self._is_closed:
            return
        self._is_closed = True
        await self._crew.end()
        if self._observing is not None:
            self._observing.cancel()
            await asyncio.gather(self._observing, return_exceptions=True)

    # -- who is told what workers tell -----------------------------------------------------------

    @property
    def on_finished(self) -> Callable[[FinishedRequest], None] | None:
        """Who is told of every finished request."""
        return self._hearing.sums.on_finished

    @on_finished.setter
    def on_finished(self, told: Callable[[FinishedRequest], None] | None) -> None:
        self._hearing.sums.on_finished = told

    @property
    def on_record(self) -> Callable[[RequestRecord], None] | None:
        """Who gets the lives of requests that are to be kept."""
        return self._hearing.on_record

    @on_record.setter
    def on_record(self, told: Callable[[RequestRecord], None] | None) -> None:
        self._hearing.on_record = told

    @property
    def on_pair(self) -> Callable[[ShadowPair], None] | None:
        """Who gets pairs of compared answers."""
        return self._hearing.on_pair

    @on_pair.setter
    def on_pair(self, told: Callable[[ShadowPair], None] | None) -> None:
        self._hearing.on_pair = told

    @property
    def wait_for_lease(self) -> Callable[[str, int, Callable[[], None]], None] | None:
        """Who makes a lease call for a request that waits for it."""
        return self._hearing.wait_for_lease

    @wait_for_lease.setter
    def wait_for_lease(self, asked: Callable[[str, int, Callable[[], None]], None] | None) -> None:
        self._hearing.wait_for_lease = asked

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
        return looking.described(self.fleet.memory, self._crew.workers)

    async def ask(self, body: bytes) -> bytes | None:
        """Ask a worker what it would choose, or b"" for its state; None: none has answered."""
        worker = next((worker for worker in self._crew.workers if worker.serves), None)
        if worker is None:
            return None
        return await self._hearing.questions.ask(worker, body)

    def heard(self, placed: tuple[AgentPlaced, ...]) -> None:
        """Let the workers know what other agents placed."""
        self._crew.tell(say.Heard(placed))

    def heard_loads(self, agent: str, pool: str, loads: Loads) -> None:
        """Let the workers know what another agent has under way."""
        self._crew.tell(say.HeardLoads(agent, pool, loads))

    # -- tables --------------------------------------------------------------------------------

    def prepare(self, table: RoutingTable) -> None:
        """Give cells to all that a table names, before it is put in place here."""
        self.fleet.slots = self._slots.follow(table)

    def put(self, table: RoutingTable, wall: float) -> None:
        """Send a table that is in place here to the workers; see `settled`."""
        self._serial += 1
        content = msgspec.json.encode(table)
        self._table = say.PutTable(self._serial, content, wall, self.fleet.slots)
        self._crew.tell(self._table)
        self._crew.tell(say.Observed(self._observer.all()))

    async def settled(self) -> None:
        """Wait until the newest table is in place in every worker that runs."""
        serial = self._serial
        try:
            async with asyncio.timeout(APPLY_LIMIT_S):
                await self._crew.until(lambda: all(w.applied >= serial for w in self._crew.running))
        except TimeoutError:
            for worker in self._crew.running:
                if worker.applied < serial:
                    log.error("worker_hangs", worker=worker.number, pid=worker.pid)
                    worker.kill()

    # -- workers -------------------------------------------------------------------------------

    def _greet(self, worker: WorkerProcess) -> None:
        """Tell a new worker all that it needs."""
        settings = self.settings
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
        self._hearing.sums.forget(worker.number)

    async def _observe(self) -> None:
        """Tell the workers what is new of engines, and follow the control plane's clock."""
        while True:
            await asyncio.sleep(OBSERVE_PAUSE_S)
            self.fleet.look()
            self.fleet.bus.watch(time.monotonic())
            news = self._observer.news()
            if news:
                self._crew.tell(say.Observed(news))
            offset_s = self.unix_clock() - time.time()
            if abs(offset_s - self._clock_offset_s) > 0.01:
                self._clock_offset_s = offset_s
                self._crew.tell(say.Clock(offset_s))
