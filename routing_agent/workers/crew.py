"""The worker processes of one agent: started together, each again when it ends, told and ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final

import structlog

from routing_agent.workers import messages as say
from routing_agent.workers.memory import SharedMemory
from routing_agent.workers.process import WorkerProcess

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.1  # before a worker that ended is started again
LONGEST_PAUSE_S: Final = 5.0
STABLE_S: Final = 30.0  # one that ran for so long is started again at once
END_LIMIT_S: Final = 5.0  # after a drain's limit, or a stop


class Crew:
    """All workers of an agent, in the order of their numbers.

    `greet` is called for each new one, to tell it all that it needs, `on_message` with all that any
    of them tells, `on_gone` when one is no more.
    """

    def __init__(
        self,
        memory: SharedMemory,
        log_level: str,
        greet: Callable[[WorkerProcess], None],
        on_message: Callable[[WorkerProcess, say.ToSupervisor], None],
        on_gone: Callable[[WorkerProcess], None],
    ) -> None:
        self.workers: list[WorkerProcess] = []
        self.changed = asyncio.Event()  # something of some worker did
        self._memory = memory
        self._log_level = log_level
        self._greet = greet
        self._on_message = on_message
        self._on_gone = on_gone
        self._listener: socket.socket | None = None
        self._is_ending = False
        self._starting: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[WorkerProcess]:
        """Those that have not ended."""
        return [worker for worker in self.workers if not worker.is_gone]

    def tell(self, message: say.Message, but: WorkerProcess | None = None) -> None:
        """Tell all that run."""
        for worker in self.running:
            if worker is not but:
                worker.send(message)

    async def start(self, count: int, listener: socket.socket) -> None:
        """Start so many, which are to accept from this socket."""
        self._listener = listener
        self.workers = [self._make(number) for number in range(count)]
        await asyncio.gather(*(self._begin(worker) for worker in self.workers))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that messages or ends of workers bring about."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def last_ones(self) -> None:
        """Start none again from now on, and accept nothing more here."""
        self._is_ending = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def all_gone(self, limit_s: float) -> bool:
        """Wait until all have ended; false if some have not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.until(lambda: not self.running)
        return not self.running

    async def end(self) -> None:
        """Let all end at once; those that do not are killed."""
        self.tell(say.Stop())
        await self.all_gone(END_LIMIT_S)
        for worker in self.workers:
            worker.kill()
        await asyncio.gather(*(worker.wait() for worker in self.workers))
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _make(self, number: int) -> WorkerProcess:
        return WorkerProcess(number, self._on_message, self._gone)

    async def _begin(self, worker: WorkerProcess) -> None:
        if self._listener is None:
            worker.is_gone = True
            return
        worker.started_at = time.monotonic()
        await worker.start(self._memory, self._listener, self._log_level)
        self._greet(worker)

    def _gone(self, worker: WorkerProcess) -> None:
        self._on_gone(worker)
        self.changed.set()
        if worker in self.workers and not self._is_ending:
            task = asyncio.get_running_loop().create_task(self._again(worker))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _again(self, worker: WorkerProcess) -> None:
        """Start another one in place of a worker that ended."""
        status = await worker.wait()
        ran_s = time.monotonic() - worker.started_at
        log.error("worker_ended", worker=worker.number, pid=worker.pid, status=status)
        pause_s = FIRST_PAUSE_S if ran_s > STABLE_S else worker.pause_s
        await asyncio.sleep(pause_s)
        if self._is_ending:
            return
        new = self._make(worker.number)
        new.pause_s = FIRST_PAUSE_S if ran_s > STABLE_S else min(2 * pause_s, LONGEST_PAUSE_S)
        self.workers[worker.number] = new
        try:
            await self._begin(new)
        except OSError as error:
            log.error("worker_not_started", worker=worker.number, why=str(error))
            self._gone(new)


async def bind(host: str, port: int) -> socket.socket:
    """Bind the port that all workers accept from; raises OSError."""
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
