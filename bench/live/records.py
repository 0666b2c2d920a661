"""One record for each request of a live load, and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Seconds; `null` where there is nothing."""

    number: int
    request_id: str
    url: str
    tenant: str
    at: float  # Unix time at which it was sent
    planned_s: float  # after the start
    late_s: float  # the client's own delay
    wanted_prompt_tokens: int
    wanted_output_tokens: int
    status: int | None = None
    outcome: str
    detail: str = ""
    replica: str = ""
    pool: str = ""
    route: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class RecordFile:
    """Records as JSON lines, written as they come."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)  # a load that is killed keeps them

    def write(self, record: Record) -> None:
        """Add one."""
        self._file.write(msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path) -> list[Record]:
    """Read a file of records back."""
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]
