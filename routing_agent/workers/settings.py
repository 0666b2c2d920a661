"""What an agent of several processes is told by its configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How many workers, and what each needs of the configuration."""

    workers: int
    certificate: tuple[str, str] | None
    engine_ca_file: str | None
    log_level: str
