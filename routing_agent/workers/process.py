"""One worker as its supervisor sees it: a process, a channel, and what it has acknowledged."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

import routing_agent
from routing_agent.workers import messages as say
from routing_agent.workers.channel import Channel
from routing_agent.workers.memory import SharedMemory

# A worker that takes no more of what it is told hangs: it would serve by an old table.
MOST_UNSENT_BYTES: Final = 64 * 1024 * 1024


class WorkerProcess:
    """A worker that runs, or has run."""

    def __init__(
        self,
        number: int,
        on_message: Callable[[WorkerProcess, say.ToSupervisor], None],
        on_gone: Callable[[WorkerProcess], None],
    ) -> None:
        self.number = number
        self.is_ready = False  # to serve
        self.serves = False
        self.is_gone = False
        self.drained: int | None = None  # how many requests it cut off when it ended
        self.started_at = 0.0  # monotonic
        self.pause_s = 0.1  # before the next one takes its place, if it ends soon
        self.applied = 0  # serial of the newest table that is in place there
        self._on_gone = on_gone
        self._channel: Channel[say.ToSupervisor] = Channel(
            say.ToSupervisor, lambda message: on_message(self, message), self._gone
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return 0 if self._process is None else self._process.pid

    async def start(self, memory: SharedMemory, listener: socket.socket, log_level: str) -> None:
        """Start the process and connect with it."""
        ours, theirs = socket.socketpair()
        with theirs:
            passed = (theirs.fileno(), memory.descriptor, listener.fileno())
            words = [
                "--channel", str(passed[0]), "--memory", str(passed[1]),
                "--listener", str(passed[2]), "--workers", str(memory.workers),
                "--log-level", log_level,
            ]  # fmt: skip
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-m", "routing_agent", "relay-worker", *words],
                pass_fds=passed,
                env=_environment(),
                stdin=subprocess.DEVNULL,
            )
        await self._channel.connect(ours)

    def send(self, message: msgspec.Struct) -> None:
        """Tell it something; one that hangs is killed."""
        self._channel.send(message)
        if self._channel.unsent_bytes > MOST_UNSENT_BYTES:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def wait(self) -> int:
        """Wait for its end; gives its exit status."""
        self._channel.close()
        return 0 if self._process is None else await asyncio.to_thread(self._process.wait)

    def _gone(self) -> None:
        self.is_gone = True
        self.is_ready = self.serves = False
        self._on_gone(self)


def _environment() -> dict[str, str]:
    """Let the worker find the sources that this process was started from."""
    root = str(Path(routing_agent.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    if root in known.split(os.pathsep):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, known)))}
