"""What this machine has of the programs that some tests need."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stack import redis_server
from stack.layout import Places
from stack.report import ProblemError

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the programs are; None means that the machine lacks them."""

    postgresql: Path | None  # the folder with initdb and postgres
    redis: Path | None
    chromium: Path | None
    nginx: Path | None

    def lacks(self) -> list[str]:
        """List what is missing, each with the package that brings it."""
        packages = {
            "postgresql": "PostgreSQL (package postgresql)",
            "redis": "Redis (package redis-server)",
            "chromium": "Chromium (package chromium)",
            "nginx": "nginx (package nginx)",
        }
        return [text for name, text in packages.items() if getattr(self, name) is None]


def inspect(here: Places) -> Machine:
    """Look for the programs; an embedded Redis counts."""
    return Machine(
        postgresql=_postgresql(),
        redis=_redis(here),
        chromium=_first(CHROMIUM_NAMES),
        nginx=_first(("nginx",)),
    )


def _first(names: tuple[str, ...]) -> Path | None:
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = (shutil.which(name, path=search) for name in names)
    return next((Path(path) for path in found if path), None)


def _postgresql() -> Path | None:
    """Debian keeps the server's programs off PATH, in a folder per version."""
    on_path = shutil.which("initdb")
    if on_path and shutil.which("postgres"):
        return Path(on_path).parent
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3])
    )
    return folders[-1].parent if folders else None


def _redis(here: Places) -> Path | None:
    try:
        return redis_server.find(here)
    except ProblemError:
        return None
