"""The port on which an agent hears from the others, and tells them: UDP, see `control.peers`."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Final

import structlog

from routing_agent.control.peers import Peers
from routing_agent.wire import PeerAddress

log = structlog.get_logger()

# Names are looked up again so often: what stands behind one may move.
LOOKED_UP_S: Final = 60.0
LOOK_PAUSE_S: Final = 1.0

Address = tuple[Any, ...]  # of a socket


class PeerPort(asyncio.DatagramProtocol):
    """Sends and receives for one agent; without it everything goes on by scrapes and reports."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self._transport: asyncio.DatagramTransport | None = None
        self._family = socket.AF_UNSPEC
        self._addresses: dict[PeerAddress, tuple[Address, float]] = {}  # and when looked up
        self._unknown: set[PeerAddress] = set()  # said once

    async def open(self, host: str, port: int) -> int:
        """Listen; give the port, 0 if it cannot be had."""
        try:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, local_addr=(host, port)
            )
        except OSError as error:
            log.warning("peer_port_closed", host=host, port=port, why=error.strerror or str(error))
            return 0
        self._transport = transport
        bound: socket.socket = transport.get_extra_info("socket")
        self._family = bound.family
        return int(bound.getsockname()[1])

    def close(self) -> None:
        """Hear and tell nothing more."""
        if self._transport is not None:
            self._transport.close()

    async def run(self) -> None:
        """Tell the others what changes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_up_all())
            while True:
                await asyncio.sleep(self.peers.pause_s(time.monotonic()))
                self._tell()

    def datagram_received(self, data: bytes, addr: Address) -> None:
        """Take a datagram; whoever sent it, only its seal counts."""
        self.peers.take(data, time.monotonic())

    def error_received(self, exc: Exception) -> None:
        """Count what a peer's machine sent back: it is away, or listens no more."""
        self.peers.counts["undelivered"] += 1

    def _tell(self) -> None:
        if self._transport is None or not self._addresses:
            return
        for datagram in self.peers.datagrams(time.monotonic()):
            for address, _ in self._addresses.values():
                self._send(datagram, address)

    def _send(self, datagram: bytes, address: Address) -> None:
        assert self._transport is not None  # noqa: S101 - see `_tell`
        try:
            self._transport.sendto(datagram, address)
        except (OSError, ValueError):  # as of an address of the other family
            self.peers.counts["undelivered"] += 1
        else:
            self.peers.counts["told"] += 1

    async def _look_up_all(self) -> None:
        while True:
            wanted = {peer.address for peer in self.peers.known}
            self._addresses = {a: at for a, at in self._addresses.items() if a in wanted}
            for address in wanted:
                await self._look_up(address)
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _look_up(self, address: PeerAddress) -> None:
        now, known = time.monotonic(), self._addresses.get(address)
        if known is not None and now - known[1] < LOOKED_UP_S:
            return
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, family=self._family, type=socket.SOCK_DGRAM
            )
        except OSError as error:
            if address not in self._unknown:
                self._unknown.add(address)
                log.warning("peer_not_found", host=address.host, why=str(error))
            return
        self._unknown.discard(address)
        self._addresses[address] = found[0][4], now
