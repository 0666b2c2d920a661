"""The line between supervisor and worker: whole messages over a pair of connected sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
import structlog

log = structlog.get_logger()

Got = TypeVar("Got")

_LENGTH_BYTES: Final = 4
_ENCODER: Final = msgspec.msgpack.Encoder()


class Channel(asyncio.Protocol, Generic[Got]):
    """One end. `on_message` gets every message in order, `on_closed` is called once."""

    def __init__(
        self, kind: Any, on_message: Callable[[Got], None], on_closed: Callable[[], None]
    ) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._on_message = on_message
        self._on_closed = on_closed
        self._kept = bytearray()
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    async def connect(self, end: socket.socket) -> None:
        """Talk over one end of the pair."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=end)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; one to an end that is gone is dropped."""
        if self._transport is not None:
            body = _ENCODER.encode(message)
            self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    @property
    def unsent_bytes(self) -> int:
        """How much the other end has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Say nothing more; what was said is still sent."""
        if self._transport is not None:
            self._transport.close()

    async def sent(self, limit_s: float) -> None:
        """Close, and wait until what was said has been taken, or the other end is gone."""
        self.close()
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._lost.wait()

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take in what has come, and hand on what is whole."""
        kept = self._kept
        kept += data
        at = 0
        while len(kept) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(kept[at : at + _LENGTH_BYTES], "big")
            if len(kept) < end:
                break
            message = self._decoder.decode(bytes(kept[at + _LENGTH_BYTES : end]))
            at = end
            try:
                self._on_message(message)
            except Exception:  # of this message alone: the next ones are as good as ever
                log.exception("message_not_taken", message=type(message).__name__)
        if at:
            del kept[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the other end is gone."""
        self._transport = None
        self._lost.set()
        self._on_closed()
