"""Usage records on disk until the control plane has them: an append-only file of JSON lines.

Each record gets the next number. Records are handed out only after they are synced, so that a
number that was once reported never comes back with another content. They are handed out again
until an acknowledgement covers them, over restarts too. A kill loses what was finished in the last
quarter of a second, a power loss what was finished since the last report.

The first line holds the number that counting starts from; the rest are records. The file is
bounded: when it is full, new records are dropped, counted, and said aloud.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog

from routing_agent.control.files import OWNER_ONLY, set_aside, write_durably
from routing_agent.metrics import FinishedRequest
from routing_agent.wire import UsageRecord

log = structlog.get_logger()

LIMIT_BYTES = 256 * 1024 * 1024  # about a million records
COMPACT_BYTES = 4 * 1024 * 1024
HEAD_BYTES = 64  # more than a head line needs
TAIL_BYTES = 64 * 1024  # more than a record needs
WRITE_DELAY_S = 0.25
BATCH = 5000
RECORD_BYTES = 1024  # more than a record needs
_LINES = msgspec.json.Encoder()


class Head(msgspec.Struct, frozen=True):
    """The first line: numbers up to this one were given and acknowledged before."""

    acknowledged: int


class UsageSpool:
    """Numbers, keeps and hands out usage records. Single-threaded apart from the disk."""

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._fresh: list[FinishedRequest] = []  # counted, not yet numbered and encoded
        self._buffer = bytearray()  # numbered, not yet written
        self._writing: asyncio.TimerHandle | None = None
        self._sent: deque[tuple[int, int]] = deque()  # (number, end offset) handed out last
        self._is_rewriting = False
        self.dropped = 0
        self.acknowledged, self.last_number, self._start = _open(path)
        self._file = path.open("r+b", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)

    @property
    def pending(self) -> int:
        """How many records wait for an acknowledgement."""
        return self.last_number - self.acknowledged

    def add(self, request: FinishedRequest) -> None:
        """Number what a finished request used and write it within a quarter of a second.

        One that was never admitted used nothing. Its record is made with the write: many at once
        cost less than each on its request's way.
        """
        if not request.was_admitted:
            return
        if self._is_full():
            self._drop()
            return
        self.last_number += 1
        self._fresh.append(request)
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.call_later(WRITE_DELAY_S, self._write)

    async def take(self, limit: int = BATCH) -> tuple[UsageRecord, ...]:
        """Sync the file and give the oldest records that are not acknowledged."""
        self._write()
        if not self.pending:
            return ()
        records, self._sent = await asyncio.to_thread(self._sync_and_read, limit, self._end)
        return records

    async def acknowledge(self, number: int) -> None:
        """Forget records up to `number`, as far as they were handed out.

        A number beyond our last comes from a life before this file (it was lost or set aside): the
        control plane took what we sent for repetitions, so it is all numbered anew after that.
        """
        if number > self.last_number:
            await self._rewrite(number, renumber=True)
            return
        while self._sent and self._sent[0][0] <= number:
            self.acknowledged, self._start = self._sent.popleft()
        behind = self._end - self._start
        if self._start > max(COMPACT_BYTES, behind) or (not behind and self._start > HEAD_BYTES):
            await self._rewrite(self.acknowledged, renumber=False)

    def close(self) -> None:
        """Write what is buffered and sync it."""
        if self._file.closed:
            return
        self._write()
        os.fsync(self._file.fileno())
        self._file.close()

    def _is_full(self) -> bool:
        held = self._end - self._start + len(self._buffer)
        if held + RECORD_BYTES * len(self._fresh) <= self._limit_bytes:
            return False
        self._encode()  # near the limit it is worth knowing exactly
        return self._end - self._start + len(self._buffer) > self._limit_bytes

    def _encode(self) -> None:
        fresh, self._fresh = self._fresh, []
        first = self.last_number - len(fresh) + 1
        numbered = [usage_of(request, number) for number, request in enumerate(fresh, first)]
        self._buffer += _LINES.encode_lines(numbered)

    def _write(self) -> None:
        self._encode()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if not self._buffer or self._is_rewriting:
            return
        try:
            written = os.pwrite(self._file.fileno(), self._buffer, self._end)
        except OSError as error:  # disk full: kept in memory, tried again with the next record
            log.error("usage_not_written", path=str(self._path), error=str(error))
            return
        self._end += written
        del self._buffer[:written]

    def _sync_and_read(
        self, limit: int, end: int
    ) -> tuple[tuple[UsageRecord, ...], deque[tuple[int, int]]]:
        os.fsync(self._file.fileno())
        records: list[UsageRecord] = []
        ends: deque[tuple[int, int]] = deque()
        with self._path.open("rb") as file:
            offset = file.seek(self._start)
            while len(records) < limit and offset < end:
                line = file.readline()
                if not line.endswith(b"\n"):  # its second half could not be written yet
                    break
                offset += len(line)
                record = _record(line)
                if record is not None:
                    records.append(record)
                    ends.append((record.number, offset))
        return tuple(records), ends

    async def _rewrite(self, acknowledged: int, *, renumber: bool) -> None:
        """Write the file anew without what is acknowledged; new records wait in memory."""
        self._write()
        self._is_rewriting = True
        try:
            head, rest = await asyncio.to_thread(self._replace_file, acknowledged, renumber)
        except OSError as error:  # the old file is still whole
            log.error("usage_not_compacted", path=str(self._path), error=str(error))
            return
        finally:
            self._is_rewriting = False
        self._sent.clear()
        self.acknowledged = acknowledged
        self._start, self._end = len(head), len(head) + len(rest)
        if renumber:
            self._renumber_buffer(acknowledged + rest.count(b"\n"))
        self._write()

    def _replace_file(self, acknowledged: int, renumber: bool) -> tuple[bytes, bytes]:
        head = _head(acknowledged)
        rest = os.pread(self._file.fileno(), self._end - self._start, self._start)
        if renumber:
            rest = _renumbered(rest, after=acknowledged)
        write_durably(self._path, head + rest)
        self._file.close()
        self._file = self._path.open("r+b", buffering=0)
        return head, rest

    def _renumber_buffer(self, last: int) -> None:
        self._encode()
        self._buffer = bytearray(_renumbered(bytes(self._buffer), after=last))
        self.last_number = last + self._buffer.count(b"\n")

    def _drop(self) -> None:
        if self.dropped % 10_000 == 0:
            log.error(
                "usage_dropped",
                dropped=self.dropped + 1,
                why=f"{self._path} holds {self._limit_bytes} bytes; is the control plane away?",
            )
        self.dropped += 1


def usage_of(request: FinishedRequest, number: int) -> UsageRecord:
    """Give what is charged for a finished request."""
    return UsageRecord(
        number=number,
        at=request.at,
        request_id=request.request_id,
        tenant=request.tenant,
        api_key=request.api_key,
        model=request.model,
        adapter=request.adapter,
        version=request.version,
        pool=request.pool,
        status=request.status,
        prompt_tokens=request.prompt_tokens,
        cached_prompt_tokens=request.cached_prompt_tokens,
        output_tokens=request.output_tokens,
        estimated=request.estimated,
    )


def _head(acknowledged: int) -> bytes:
    return msgspec.json.encode(Head(acknowledged)) + b"\n"


def _record(line: bytes) -> UsageRecord | None:
    try:
        return msgspec.json.decode(line, type=UsageRecord)
    except msgspec.MsgspecError as error:
        log.error("usage_record_unreadable", error=str(error))
        return None


def _renumbered(lines: bytes, *, after: int) -> bytes:
    records = [r for line in lines.splitlines() if (r := _record(line))]
    numbered = (msgspec.structs.replace(r, number=after + i) for i, r in enumerate(records, 1))
    return b"".join(msgspec.json.encode(record) + b"\n" for record in numbered)


def _open(path: Path) -> tuple[int, int, int]:
    """Make or mend the file; give the number acknowledged, the last number, the first offset."""
    if not path.exists():
        write_durably(path, _head(0))
    path.chmod(OWNER_ONLY)
    with path.open("r+b") as file:
        head = file.readline()
        try:
            acknowledged = msgspec.json.decode(head, type=Head).acknowledged
        except msgspec.MsgspecError as error:
            aside = set_aside(path)
            log.error("usage_file_corrupt", set_aside=str(aside), error=str(error))
            return _open(path)
        tail = _tail(file, len(head))
        whole = tail[: tail.rfind(b"\n") + 1]  # a crash may leave half a line at the end
        if len(whole) < len(tail):
            file.truncate(file.seek(0, os.SEEK_END) - len(tail) + len(whole))
    numbers = [r.number for line in whole.splitlines() if (r := _record(line))]
    return acknowledged, max([acknowledged, *numbers]), len(head)


def _tail(file: BinaryIO, start: int) -> bytes:
    """Read the end of the file from a line's beginning: numbers grow, so the last tell all."""
    end = file.seek(0, os.SEEK_END)
    offset = max(start, end - TAIL_BYTES)
    file.seek(offset)
    tail = file.read()
    return tail if offset == start else tail[tail.find(b"\n") + 1 :]
