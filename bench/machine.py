"""Processes under test: started in a scratch folder, their CPU and memory read from the kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEY = "sk-bench"
MODEL = "m"
ENGINES = 4
STOP_LIMIT_S = 5.0


class BenchError(Exception):
    """The benchmark cannot run; the message says why."""


class Process:
    """A process under test, its children included."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        folder: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self._said = folder / f"{name}-output"
        with self._said.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    def await_port(self, limit_s: float = 20.0) -> None:
        """Wait until it listens, or say what it said instead."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self.is_alive:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise BenchError(f"{self.name} does not listen on its port. {self.last_words()}")

    def last_words(self) -> str:
        """Give the end of what it wrote."""
        lines = self._said.read_text(errors="replace").strip().splitlines()
        return "It said: " + " | ".join(lines[-4:])[-600:] if lines else "It said nothing."

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """Give the CPU seconds used so far, user and system, of all its processes."""
        return sum(cpu_s(pid) for pid in self._pids())

    def memory_mib(self) -> float:
        """Give the resident memory now."""
        return sum(resident_mib(pid) for pid in self._pids())

    def tell(self, number: signal.Signals) -> None:
        """Send a signal; after a SIGKILL it is gone on return."""
        if self.is_alive:
            self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def descriptors(self) -> int:
        """Give how many files and sockets it has open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def output(self) -> str:
        """Give all it wrote."""
        return self._said.read_text(errors="replace")

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _pids(self) -> list[int]:
        return family(self._process.pid)


def family(pid: int) -> list[int]:
    """Give a process and all that come of it."""
    found: list[int] = []
    to_visit = [pid]
    while to_visit:
        found.append(to_visit.pop())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
                to_visit += [int(child) for child in children.read_text().split()]
    return found


def family_cpu_s(pid: int) -> float:
    """Read the CPU clocks of a process and of all that come of it and still run."""
    return sum(cpu_s(one) for one in family(pid))


def cpu_s(pid: int) -> float:
    """Read a process's CPU clock: what /proc counts in ticks of 10 ms, in nanoseconds."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0  # it ended meanwhile


def resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0.0  # it ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_ports(count: int) -> list[int]:
    """Give ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def simulated_engines(
    stack: contextlib.ExitStack, folder: Path, count: int, *options: str
) -> list[Process]:
    """Start simulated engines of one kind and wait for them; they end with the stack."""
    engines = []
    for port in free_ports(count):
        words = ["simulate-engine", "--port", str(port), "--model", MODEL, *options]
        command = [sys.executable, "-m", "routing_agent", *words, "--keep-alive-timeout", "600"]
        engine = Process(f"engine-{port}", command, port, folder)
        stack.callback(engine.stop)
        engines.append(engine)
    for engine in engines:
        engine.await_port()
    return engines


def progress(text: str) -> None:
    """Show on standard error what is being measured."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:78}", end=end, file=sys.stderr, flush=True)
