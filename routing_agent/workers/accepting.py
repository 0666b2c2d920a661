"""Accepts clients from the one listening socket that all workers share.

Whoever is idle gets there first, so connections go where there is time for them; a worker that has
more of them than another steps back for a moment. One that dies takes none of those with it that
nobody has accepted yet.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from routing_agent import tls
from routing_agent.workers.memory import CONNECTIONS, WORKER_CELLS, SharedMemory

log = structlog.get_logger()

STEP_BACK_S: Final = 0.002
MORE_BY: Final = 2  # connections
OUT_OF_SOCKETS_PAUSE_S: Final = 0.1


class Acceptor:
    """One worker's part in it."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        certificate: ssl.SSLContext | None,
        shared: tuple[SharedMemory, int],
        count: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._make = make
        self._certificate = certificate
        self._memory, number = shared
        self._count = count
        self._own = number * WORKER_CELLS + CONNECTIONS
        self._loop = asyncio.get_running_loop()
        self._stepped_back = False
        self._again: asyncio.TimerHandle | None = None
        self._taking: set[asyncio.Task[object]] = set()
        self.is_open = False

    def start(self) -> None:
        """Accept from now on."""
        self.is_open = True
        self._loop.add_reader(self._listener, self._come)

    def close(self) -> None:
        """Accept nothing more."""
        if self.is_open:
            self.is_open = False
            self._pause()
            if self._again is not None:
                self._again.cancel()
            self._listener.close()

    def _come(self) -> None:
        """Accept one connection; the next one is for whoever is there first."""
        if not self._stepped_back and self._has_more_than_others():
            self._stepped_back = True
            self._step_back(STEP_BACK_S)
            return
        self._stepped_back = False
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was first, or the client has left
        except OSError as error:
            log.error("cannot_accept", why=error.strerror or str(error))
            self._step_back(OUT_OF_SOCKETS_PAUSE_S)
            return
        self._memory.ints[self._own] = self._count() + len(self._taking) + 1
        client.setblocking(False)
        # Loops set it on what they accept themselves; without it small answers wait for 40 ms.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._take(client))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, client: socket.socket) -> None:
        is_tls = self._certificate is not None
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                client,
                ssl=self._certificate,
                ssl_handshake_timeout=tls.HANDSHAKE_LIMIT_S if is_tls else None,
                ssl_shutdown_timeout=tls.SHUTDOWN_LIMIT_S if is_tls else None,
            )
        except (OSError, ssl.SSLError):
            client.close()  # it spoke no TLS, or left meanwhile

    def _has_more_than_others(self) -> bool:
        ints = self._memory.ints
        counts = ints[CONNECTIONS : self._memory.workers * WORKER_CELLS : WORKER_CELLS].tolist()
        return bool(ints[self._own] - min(counts) >= MORE_BY)

    def _step_back(self, pause_s: float) -> None:
        self._pause()
        self._again = self._loop.call_later(pause_s, self._come_back)

    def _come_back(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener, self._come)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
