"""The memory that the processes of one agent share: cells of numbers, each with one writer.

A worker writes its own cells and reads everybody's, so a sum is never behind by more than what is
being written. What must be checked and taken in one step (limits, places) is done under a lock
that the kernel takes from a process that dies. The cells of a dead worker are set to zero.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from struct import Struct
from typing import Final

MOST_WORKERS: Final = 64
SUPERVISOR: Final = -1  # in place of a worker's number: it carries nothing itself
# What does not fit is counted by each process for itself, and said in the log.
REPLICAS: Final = 4096
TENANTS: Final = 8192
POOLS: Final = 1024

# Of one worker at one replica; times are monotonic microseconds, 0: none.
REPLICA_CELLS: Final = 8
REQUESTS, TOKENS, QUEUED_TOKENS, WAITING_PROMPTS, FIRST_TOKENS, FIRST_AT, DONE_AT = range(7)
# Of one worker about those who wait for a pool: how many, what decides about the next of them
# (priority, counter of their tenant, when they count as come), and since when the first one waits.
POOL_CELLS: Final = 8
WAITING, PRIORITY, COUNTER, COME_AT, OLDEST_AT = range(5)
# Of one worker about itself.
WORKER_CELLS: Final = 8
CONNECTIONS, RUNNING = range(2)
# Of one tenant, beside two counts for each worker: of running requests, and of places that the
# supervisor has taken for requests of that worker that do not know of it yet.
GATE_FIGURES: Final = 32
# What a worker placed, for the others to read.
RING_BYTES: Final = 1 << 22  # a thousand prompts of 128 KiB; pages nobody wrote cost nothing
RING_HEAD_WORDS: Final = 8

WORD: Final = 8  # bytes


class SharedMemory:
    """One mapped file without a name. `ints` and `floats` are the same words in two readings.

    What belongs together is read and written by one call of a `Struct`: a third of the time.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self.replica_at = MOST_WORKERS * WORKER_CELLS
        self.replica_words = workers * REPLICA_CELLS
        self.gate_at = self.replica_at + REPLICAS * self.replica_words
        self.gate_words = 2 * workers + GATE_FIGURES
        self.pool_at = self.gate_at + TENANTS * self.gate_words
        self.pool_words = workers * POOL_CELLS
        self.ring_at = self.pool_at + POOLS * self.pool_words
        words = self.ring_at + workers * (RING_HEAD_WORDS + RING_BYTES // WORD)
        self._map = mmap.mmap(descriptor, words * WORD)
        self.bytes = memoryview(self._map)
        self.ints = self.bytes.cast("q")
        self.floats = self.bytes.cast("d")
        self.replica_row = Struct(f"{self.replica_words}q")
        self.gate_counts = Struct(f"{2 * workers}q")
        self.pool_row = Struct(f"{self.pool_words}q")

    @classmethod
    def create(cls, workers: int) -> SharedMemory:
        """Make new memory, all zero; pages that nobody touches cost nothing."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("signalbox-workers")
        else:
            with tempfile.TemporaryFile(prefix="signalbox-workers-") as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, size_bytes(workers))
        return cls(descriptor, workers)

    def lock(self, slot: int) -> None:
        """Wait for the lock of a slot: a few microseconds, whoever else holds it."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, slot)

    def unlock(self, slot: int) -> None:
        """Give the lock of a slot back."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, slot)

    # -- where things are, in words --------------------------------------------------------------

    def replica(self, slot: int) -> int:
        """Give where the cells of all workers at a replica begin."""
        return self.replica_at + slot * self.replica_words

    def gate(self, slot: int) -> int:
        """Give where a tenant's counts begin: of running requests, of places kept; then figures."""
        return self.gate_at + slot * self.gate_words

    def pool(self, slot: int) -> int:
        """Give where the cells of all workers about those who wait for a pool begin."""
        return self.pool_at + slot * self.pool_words

    def ring(self, worker: int) -> int:
        """Give where a worker's ring begins."""
        return self.ring_at + worker * (RING_HEAD_WORDS + RING_BYTES // WORD)

    # ------------------------------------------------------------------------------------------

    def forget_worker(self, worker: int, slots: tuple[int, int, int]) -> None:
        """Set the cells of a worker that is gone to zero, up to so many replicas, tenants, pools.

        What it held is free from now on: its connections are closed, so its engines stop.
        """
        ints, (replicas, tenants, pools) = self.ints, slots
        for slot in range(replicas):
            first = self.replica(slot) + worker * REPLICA_CELLS
            for cell in range(first, first + REPLICA_CELLS):
                ints[cell] = 0
        for slot in range(tenants):
            ints[self.gate(slot) + worker] = ints[self.gate(slot) + self.workers + worker] = 0
        for slot in range(pools):
            first = self.pool(slot) + worker * POOL_CELLS
            for cell in range(first, first + POOL_CELLS):
                ints[cell] = 0
        for cell in range(WORKER_CELLS):
            ints[worker * WORKER_CELLS + cell] = 0

    def close(self) -> None:
        """Let go of the memory."""
        self.ints.release()
        self.floats.release()
        self.bytes.release()
        self._map.close()
        os.close(self.descriptor)


def size_bytes(workers: int) -> int:
    """Give how large the memory of so many workers is."""
    words = MOST_WORKERS * WORKER_CELLS
    words += REPLICAS * workers * REPLICA_CELLS
    words += TENANTS * (2 * workers + GATE_FIGURES) + POOLS * workers * POOL_CELLS
    return (words + workers * (RING_HEAD_WORDS + RING_BYTES // WORD)) * WORD


# Locks are bytes of the file that nobody reads: tenants first, then replicas, then pools.
TENANT_LOCKS: Final = 0
REPLICA_LOCKS: Final = TENANTS
POOL_LOCKS: Final = TENANTS + REPLICAS
