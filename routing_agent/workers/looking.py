"""What the shared memory tells of all workers together."""

from __future__ import annotations

import time
from collections.abc import Iterable

from routing_agent.wire import PoolWaiting
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.memory import (
    CONNECTIONS,
    OLDEST_AT,
    POOL_CELLS,
    RUNNING,
    WAITING,
    WORKER_CELLS,
    SharedMemory,
)
from routing_agent.workers.process import WorkerProcess


def total(memory: SharedMemory, cell: int) -> int:
    """Add up what the workers say of themselves, as of a tenth of a second ago."""
    return sum(memory.ints[cell : memory.workers * WORKER_CELLS : WORKER_CELLS].tolist())


def described(memory: SharedMemory, workers: Iterable[WorkerProcess]) -> list[dict[str, object]]:
    """Describe each worker."""
    return [
        {
            "worker": worker.number,
            "pid": worker.pid,
            "serves": worker.serves,
            "open_connections": memory.ints[worker.number * WORKER_CELLS + CONNECTIONS],
            "running_requests": memory.ints[worker.number * WORKER_CELLS + RUNNING],
        }
        for worker in workers
    ]


def waiting(fleet: SharedFleet) -> tuple[PoolWaiting, ...]:
    """Say who waits in which pool's queues."""
    found = (_waiting(fleet.memory, name, slot) for name, slot in fleet.slots.pools.items())
    return tuple(one for one in found if one is not None)


def _waiting(memory: SharedMemory, pool: str, slot: int) -> PoolWaiting | None:
    first, now = memory.pool(slot), time.monotonic()
    row = memory.ints[first : first + memory.pool_words].tolist()
    starts = [at for at in range(0, len(row), POOL_CELLS) if row[at + WAITING]]
    if not starts:
        return None
    since = [row[at + OLDEST_AT] / 1e6 for at in starts if row[at + OLDEST_AT]]
    return PoolWaiting(
        pool=pool,
        requests=sum(row[at + WAITING] for at in starts),
        oldest_s=max(now - min(since, default=now), 0.0),
    )
