"""Where everything lies: folders of a checkout and ports of a stack."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DEFAULT_PORT_BASE = 8000
HIGHEST_OFFSET = 399
# A Unix socket's path may have 107 bytes (Linux) or 103 (macOS).
SOCKET_PATH_LIMIT_BYTES = 100


@dataclass(frozen=True)
class Places:
    """The folders and files of one stack; all of its state is under `var`."""

    root: Path
    var: Path

    @property
    def secrets(self) -> Path:
        """Generated secrets, folder 0700 and files 0600."""
        return self.var / "secrets"

    @property
    def run(self) -> Path:
        """What describes the running processes; may be deleted while nothing runs."""
        return self.var / "run"

    @property
    def log(self) -> Path:
        """One log file per service, and those of installation and migration."""
        return self.var / "log"

    @property
    def venv(self) -> Path:
        """The virtual environment; `SIGNALBOX_VENV` names a prepared one."""
        return Path(os.environ.get("SIGNALBOX_VENV") or self.root / ".venv")

    @property
    def python(self) -> Path:
        """The interpreter that the services run on."""
        return self.venv / "bin" / "python"

    @property
    def services_file(self) -> Path:
        """Commands and environments of this start, with secrets: 0600."""
        return self.run / "services.json"

    @property
    def supervisor_socket(self) -> Path:
        """Where the supervisor listens; in the temporary folder if the checkout's path is long."""
        inside = self.run / "supervisor.sock"
        if len(os.fsencode(inside)) <= SOCKET_PATH_LIMIT_BYTES:
            return inside
        name = hashlib.sha256(os.fsencode(self.run)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"signalbox-{os.getuid()}-{name}" / "supervisor.sock"

    def shown(self, path: Path) -> str:
        """Give a path as a person in the checkout would type it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def places(root: Path = ROOT) -> Places:
    """Find the stack of a checkout; `SIGNALBOX_VAR` moves its state elsewhere."""
    return Places(root=root, var=Path(os.environ.get("SIGNALBOX_VAR") or root / "var").absolute())


@dataclass(frozen=True)
class Ports:
    """The ports of a stack, all counted from one base."""

    base: int = DEFAULT_PORT_BASE

    @property
    def web(self) -> int:
        """Console and API."""
        return self.base

    @property
    def prometheus(self) -> int:
        """Prometheus, where its binary is on PATH."""
        return self.base + 90

    @property
    def redis(self) -> int:
        """The embedded Redis."""
        return self.base + 379

    def traffic(self, agent: int) -> int:
        """Where agent 1, 2, … takes OpenAI traffic."""
        return self.base + 100 + agent

    def admin(self, agent: int) -> int:
        """Where agent 1, 2, … takes tables and shows metrics."""
        return self.base + 200 + agent

    def engines_of(self, agent: int) -> tuple[int, int]:
        """First and last port of the engines that agent 1, 2, … starts itself."""
        first = self.base + 300 + 20 * agent
        return first, first + 19

    def engine(self, engine: int) -> int:
        """Where simulated engine 1, 2, … listens."""
        return self.base + 300 + engine
