"""What an agent of several processes is told by its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from routing_agent.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How many workers, and what each needs of the configuration."""

    workers: int
    certificate: tuple[str, str] | None
    engine_ca_file: str | None
    place: tuple[str, str] = ("", "")  # node and zone
    log_level: str


def settings_of(config: Config) -> WorkerSettings:
    """Give what workers are told of a configuration."""
    certificate, ca_file = config.certificate, config.engine_ca_file
    return WorkerSettings(
        workers=config.workers,
        certificate=None if certificate is None else (str(certificate[0]), str(certificate[1])),
        engine_ca_file=None if ca_file is None else str(ca_file),
        place=config.place,
        log_level=config.log_level,
    )
