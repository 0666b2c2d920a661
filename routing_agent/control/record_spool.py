"""Records of requests on disk until the control plane has them, over restarts too.

Two files of JSON lines: one grows; when it holds half the limit it becomes the older one, and what
was older is dropped, counted, and said aloud. So the newest records survive a long outage.

Unlike usage, a record may be handed out again after a restart although it was acknowledged, and the
last quarter of a second may be lost: the control plane books by `uid`, and nobody is billed by it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog

from routing_agent.control.files import OWNER_ONLY
from routing_agent.wire import RequestRecord, ShadowPair

log = structlog.get_logger()

LIMIT_BYTES = 32 * 1024 * 1024  # about 20,000 records
BUFFER_BYTES = 1024 * 1024  # kept in memory while the disk takes nothing
WRITE_DELAY_S = 0.25
BATCH = 100


Spooled = TypeVar("Spooled", RequestRecord, ShadowPair)


class _Numbered(msgspec.Struct):
    number: int = 0


class _Segment:
    """One file: what lies between `start` and `end` is not acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch(OWNER_ONLY)
        path.chmod(OWNER_ONLY)
        self.file = path.open("r+b", buffering=0)
        content = self.file.read() or b""
        whole = content[: content.rfind(b"\n") + 1]  # a crash may leave half a line at the end
        self.file.truncate(len(whole))
        numbers = [_number(line) for line in whole.splitlines()]
        self.last_number = max(numbers, default=0)
        self.count = len(numbers)
        self.start = 0
        self.end = len(whole)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.file.fileno(), min(size, self.end - offset), offset)

    def clear(self) -> None:
        self.file.truncate(0)
        self.start = self.end = self.count = 0

    def close(self) -> None:
        self.file.close()


class RecordSpool(Generic[Spooled]):
    """Numbers, keeps and hands out records of one kind. For one event loop."""

    def __init__(self, path: Path, kind: type[Spooled], *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._kind: type[Spooled] = kind
        self._half_bytes = limit_bytes // 2
        self._older = _Segment(path.with_name(f"{path.stem}.older{path.suffix}"))
        self._newer = _Segment(path)
        self._buffer = bytearray()
        self._buffered = 0
        self._sent: deque[tuple[int, _Segment, int]] = deque()  # number, where, offset behind it
        self._writing: asyncio.TimerHandle | None = None
        self.last_number = max(self._older.last_number, self._newer.last_number)
        self.dropped = 0

    @property
    def pending(self) -> int:
        """How many records wait for an acknowledgement."""
        return self._older.count + self._newer.count + self._buffered

    def add(self, record: Spooled) -> None:
        """Number a record and write it within a quarter of a second."""
        if len(self._buffer) > BUFFER_BYTES:
            self._note_dropped(1, "the disk takes nothing")
            return
        self.last_number += 1
        numbered = msgspec.structs.replace(record, number=self.last_number)
        self._buffer += msgspec.json.encode(numbered) + b"\n"
        self._buffered += 1
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._writing = loop.call_later(WRITE_DELAY_S, self._write)

    def take(self, limit: int = BATCH) -> tuple[Spooled, ...]:
        """Give the oldest records that are not acknowledged."""
        self._write()
        self._sent.clear()
        records: list[Spooled] = []
        for segment in (self._older, self._newer):
            records += self._read(segment, limit - len(records))
        return tuple(records)

    def acknowledge(self, number: int) -> bool:
        """Forget records up to `number`, as far as they were handed out; true if any were."""
        found = False
        while self._sent and self._sent[0][0] <= number:
            _, segment, offset = self._sent.popleft()
            segment.start = offset
            segment.count -= 1
            found = True
        for segment in (self._older, self._newer):
            if segment.start >= segment.end > 0:
                segment.clear()
        return found

    def close(self) -> None:
        """Write what is buffered."""
        if self._newer.file.closed:
            return
        self._write()
        self._older.close()
        self._newer.close()

    def _read(self, segment: _Segment, limit: int) -> list[Spooled]:
        """Read up to `limit` records; a line that cannot be read is passed over for good."""
        records: list[Spooled] = []
        offset = segment.start
        kept = b""
        while len(records) < limit and (more := segment.read(offset + len(kept), 64 * 1024)):
            kept += more
            while len(records) < limit and (end := kept.find(b"\n") + 1):
                line, kept = kept[:end], kept[end:]
                offset += end
                record = _record(line, self._kind)
                if record is not None:
                    records.append(record)
                    self._sent.append((record.number, segment, offset))
                elif records:  # goes with the record before it
                    self._sent.append((records[-1].number, segment, offset))
                else:
                    segment.start = offset
                    segment.count -= 1
        return records

    def _write(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if not self._buffer:
            return
        if self._newer.end >= self._half_bytes:
            self._turn()
        segment = self._newer
        try:
            written = os.pwrite(segment.file.fileno(), self._buffer, segment.end)
        except OSError as error:  # disk full: kept in memory, tried again with the next record
            log.error("records_not_written", path=str(segment.path), error=str(error))
            return
        whole = self._buffer.rfind(b"\n", 0, written) + 1  # half a line is written again
        lines = self._buffer.count(b"\n", 0, whole)
        segment.end += whole
        segment.count += lines
        self._buffered -= lines
        del self._buffer[:whole]

    def _turn(self) -> None:
        """Make the newer file the older one; what the older one held is dropped."""
        older, newer = self._older, self._newer
        self._note_dropped(older.count, "the file is full; is the control plane away?")
        self._sent = deque(sent for sent in self._sent if sent[1] is not older)
        older.clear()
        spare = newer.path.with_name(f".{newer.path.name}.turning")
        older.path.replace(spare)
        newer.path.replace(older.path)
        spare.replace(newer.path)
        older.path, newer.path = newer.path, older.path
        self._older, self._newer = newer, older

    def _note_dropped(self, count: int, why: str) -> None:
        if count:
            self.dropped += count
            log.warning("records_dropped", records=count, in_all=self.dropped, why=why)


def _number(line: bytes) -> int:
    try:
        return msgspec.json.decode(line, type=_Numbered).number
    except msgspec.MsgspecError:
        return 0  # told when it is read


def _record(line: bytes, kind: type[Spooled]) -> Spooled | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        log.error("record_unreadable", error=str(error))
        return None
