"""What goes wrong with which engine and when: a seeded schedule over real processes."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from bench.fault_engine import MODES
from bench.machine import Process

PROCESS_FAULTS = ("killed", "stopped")
# The pause between two faults and the length of one: of four engines, one or two are ill at a time.
PAUSE_S = (0.5, 2.5)
LENGTH_S = (0.5, 4.0)
RESTART_S = (0.0, 3.0)  # how long a killed engine stays away


class ScriptedEngine:
    """One engine process, always on the same port."""

    def __init__(self, port: int, folder: Path, seed: int) -> None:
        self.port = port
        self.is_ill = False
        self._folder = folder
        self._seed = seed
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it (again)."""
        command = [sys.executable, "-m", "bench.fault_engine", str(self.port), str(self._seed)]
        self._process = Process(f"engine-{self.port}", command, self.port, self._folder)
        await asyncio.to_thread(self._process.await_port)

    async def suffer(self, fault: str, dice: random.Random) -> None:
        """Live through one fault and be well again."""
        self.is_ill = True
        if fault == "killed":
            self.tell(signal.SIGKILL)
            await asyncio.sleep(dice.uniform(*RESTART_S))
            await self.start()
        elif fault == "stopped":
            self.tell(signal.SIGSTOP)
            await asyncio.sleep(dice.uniform(*LENGTH_S))
            self.tell(signal.SIGCONT)
        else:
            await self._switch(fault)
            await asyncio.sleep(dice.uniform(*LENGTH_S))
            await self._switch("well")
        self.is_ill = False

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.tell(number)

    def stop(self) -> None:
        """Stop it for good."""
        if self._process is not None:
            self._process.tell(signal.SIGKILL)

    async def _switch(self, mode: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"POST /fault/{mode} HTTP/1.1\r\nhost: e\r\ncontent-length: 0\r\n\r\n".encode()
        )
        await reader.readuntil(b"}")
        writer.close()


class Injector:
    """Makes engines ill, one after the other and several at once."""

    def __init__(self, engines: list[ScriptedEngine], dice: random.Random) -> None:
        self.injected: Counter[str] = Counter()
        self._engines = engines
        self._dice = dice

    async def run(self, *, until: float) -> None:
        """Inject until a moment of the monotonic clock; all engines are well on return."""
        kinds = [*PROCESS_FAULTS, *(mode for mode in MODES if mode != "well")]
        async with asyncio.TaskGroup() as running:
            while time.monotonic() < until:
                await asyncio.sleep(self._dice.uniform(*PAUSE_S))
                well = [engine for engine in self._engines if not engine.is_ill]
                if not well:
                    continue
                fault = self._dice.choice(kinds)
                self.injected[fault] += 1
                running.create_task(self._dice.choice(well).suffer(fault, self._dice))
