"""Report numbers that only grow, over restarts too, without a disk write per report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from routing_agent.control.files import set_aside, write_durably

log = structlog.get_logger()

RESERVE = 1000  # numbers a start may skip; one write in half an hour of reports


class Reserved(msgspec.Struct, frozen=True):
    """Numbers up to this one may have been used."""

    up_to: int


class ReportNumbers:
    """Gives numbers in steps of one; after a restart it goes on above every number ever given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = self._reserved = self._load()

    def next(self) -> int:
        """Give the next number."""
        if self._last >= self._reserved:
            self._reserved = self._last + RESERVE
            write_durably(self._path, msgspec.json.encode(Reserved(self._reserved)))
        self._last += 1
        return self._last

    def _load(self) -> int:
        if not self._path.exists():
            return 0
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Reserved).up_to
        except msgspec.MsgspecError as error:
            aside = set_aside(self._path)
            log.error("numbers_file_corrupt", set_aside=str(aside), error=str(error))
            return 0
