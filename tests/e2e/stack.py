"""The real product, started by its own command in a copy of this checkout, for end-to-end tests."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from stack import ports
from stack.layout import ROOT, Ports

TAG = sys.implementation.cache_tag
EPOCH = re.compile(r"^signalbox_table_epoch(?:\{[^}]*\})? (\d+)", re.MULTILINE)


def copy_of_checkout(target: Path) -> None:
    """Copy what git knows and what it would add, uncommitted changes included.

    What Python compiled of it comes along: it is valid for the same sources of the same time.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
            compiled = Path(name).parent / "__pycache__" / f"{source.stem}.{TAG}.pyc"
            if source.suffix == ".py" and (ROOT / compiled).is_file():
                (target / compiled).parent.mkdir(exist_ok=True)
                shutil.copy2(ROOT / compiled, target / compiled)


def free_port_base() -> int:
    """Find a base whose whole range of ports is free, below those the system hands out.

    By chance, since another stack may be looking for one at this moment.
    """
    for base in random.sample(range(11000, 31000, 1000), 20):
        numbers = Ports(base)
        wanted = [numbers.web, numbers.redis, numbers.prometheus]
        wanted += [numbers.traffic(n) for n in (1, 2)] + [numbers.admin(n) for n in (1, 2)]
        wanted += [numbers.engine(n) for n in range(1, 5)]
        if all(map(ports.is_free, wanted)):
            return base
    raise AssertionError("no free range of ports")


def eventually(condition: Callable[[], Any], *, limit_s: float = 60.0) -> Any:
    """Wait until a condition gives something true and give that; fail if it never does.

    It is asked less and less often: each time costs the product about as much as the test.
    """
    deadline = time.monotonic() + limit_s
    pause_s = 0.05
    while True:
        try:
            found = condition()
        except httpx.TransportError:
            found = None
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:.0f} s: {condition}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.5)


class Stack:
    """One running product and the commands that drive it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = free_port_base()
        self.ports = Ports(self.base)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SIGNALBOX_", "DJANGO_"))}
        for name in ("DATABASE_URL", "REDIS_URL", "PROMETHEUS_URL", "COVERAGE_PROCESS_START"):
            kept.pop(name, None)
        self.printed = ""
        self.environment = {**kept, "SIGNALBOX_VENV": sys.prefix, "PYTHON": sys.executable}

    def command(self, *words: str, limit_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run one of bin/…, as a user would."""
        return subprocess.run(
            [self.root / "bin" / words[0], *words[1:]],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )

    def up(self) -> str:
        """Start it, or bring back what is down; gives what was printed."""
        told = self.command("up", "--detach", "--no-traffic", "--port-base", str(self.base))
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def mend(self) -> None:
        """Bring back what is down or unwell, if anything is: starting it anew takes longer."""
        if set(self.health().values()) != {"ok"}:
            self.up()

    def status(self) -> dict[str, Any]:
        """Give what `bin/status --json` says."""
        return dict(json.loads(self.command("status", "--json").stdout))

    def health(self) -> dict[str, str]:
        """Give each service's health."""
        return {s["name"]: s["health"] for s in self.status()["services"]}

    def pid(self, name: str) -> int:
        """Give a service's process."""
        return next(s["pid"] for s in self.status()["services"] if s["name"] == name)

    def kill(self, *names: str) -> None:
        """SIGKILL some services, all at once."""
        pids = [self.pid(name) for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Keep a service from answering while its sockets stay open."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def epochs(self) -> list[int]:
        """Give the epoch that each agent says it runs."""
        return [self._epoch(self.ports.admin(number)) for number in (1, 2)]

    def _epoch(self, port: int) -> int:
        found = EPOCH.search(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
        return int(found.group(1)) if found else 0

    def log(self, name: str) -> list[dict[str, Any]]:
        """Give the events of a service's log."""
        text = (self.root / "var" / "log" / f"{name}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    @contextmanager
    def operator(self) -> Iterator[httpx.Client]:
        """Give a browser's view of the API: signed in as the admin, CSRF token at hand."""
        password = (self.root / self.status()["admin"]["password_file"]).read_text().strip()
        form = {"username": "admin", "password": password, "next": "/"}
        with httpx.Client(base_url=f"http://127.0.0.1:{self.ports.web}", timeout=10) as client:
            client.get("/login/")
            answer = client.post("/login/", data=form, headers=self._csrf(client))
            assert answer.status_code == 302, answer.text
            client.headers.update(self._csrf(client))
            yield client

    def _csrf(self, client: httpx.Client) -> dict[str, str]:
        return {"X-CSRFToken": client.cookies["csrftoken"], "Referer": str(client.base_url)}
