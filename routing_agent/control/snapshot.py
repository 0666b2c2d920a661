"""The last good table on disk: survives restarts of the agent and the loss of the control plane."""

from __future__ import annotations

from pathlib import Path

import structlog

from routing_agent.control.files import set_aside, write_durably
from routing_agent.control.tables import BadTable, read_table
from routing_agent.wire import RoutingTable

log = structlog.get_logger()


class TableStore:
    """Keeps one table, byte for byte as it came, readable by the owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, content: bytes) -> None:
        """Write the table durably; OSError if the disk does not take it."""
        write_durably(self._path, content)

    def load(self) -> RoutingTable | None:
        """Give the kept table; a file that cannot be used is set aside and counts as none."""
        if not self._path.exists():
            return None
        try:
            return read_table(self._path.read_bytes())
        except OSError as error:
            log.error("table_file_unreadable", path=str(self._path), error=str(error))
        except BadTable as error:
            aside = set_aside(self._path)
            log.error("table_file_corrupt", set_aside=str(aside), error=str(error))
        return None
