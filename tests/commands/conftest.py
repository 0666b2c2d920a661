"""Small stacks of real processes, without the product: what supervises it is what is tested."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stack import credentials, down, processes, supervise
from stack.layout import Places
from stack.services import Probe, Service

from tests.ports import free_port

SERVE = (
    "import http.server, sys;"
    "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])),"
    " http.server.SimpleHTTPRequestHandler).serve_forever()"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A stack's folders, under a path with the characters that trip careless configuration."""
    monkeypatch.setenv("SIGNALBOX_VENV", sys.prefix)
    root = tmp_path / "50 % of (it)"
    root.mkdir()
    places = Places(root=root, var=root / "var")
    credentials.ensure(places)
    return places


class SmallStack:
    """A supervisor over some tiny services."""

    def __init__(self, here: Places) -> None:
        self.here = here
        self.services: list[Service] = []
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, name: str, code: str, *words: str) -> int:
        """Add a Python one-liner; it gets a free port as its first word."""
        port = free_port()
        service = Service(
            name=name,
            command=(sys.executable, "-c", code, str(port), *words),
            probe=Probe(kind="http", target=f"http://127.0.0.1:{port}/"),
            url=f"http://127.0.0.1:{port}",
            environment={"ONLY": "this"},
            folder=str(self.here.root),
            patience_s=3,
        )
        self.services.append(service)
        return port

    def start(self) -> supervise.Supervisor:
        """Start it all and wait until each service runs."""
        stack = {
            "id": credentials.stack_id(self.here),
            "console": "",
            "options": {},
            "services": {s.name: s.as_json() for s in self.services},
        }
        credentials.write_private(self.here.services_file, json.dumps(stack))
        configuration = supervise.configuration(self.here, self.services)
        credentials.write_private(self.here.run / "supervisord.conf", configuration)
        self.process = supervise.start(self.here, credentials.stack_id(self.here))
        for service in self.services:
            assert processes.wait_until(partial(self.pid, service.name), limit_s=20)
        return supervise.Supervisor(self.here)

    def pid(self, name: str) -> Any:
        """Give a service's process as recorded by itself, while it lives."""
        for record in processes.saved_records(self.here.run):
            if record.name == name and processes.is_alive(record):
                return record.pid
        return None

    def living(self) -> list[processes.ProcessRecord]:
        """List every process of this stack."""
        return processes.living(self.here.run, credentials.stack_id(self.here))


@pytest.fixture
def small_stack(here: Places) -> Iterator[SmallStack]:
    """Give an empty stack to fill; whatever it started is gone afterwards."""
    stack = SmallStack(here)
    yield stack
    for record in stack.living():  # a test may have frozen one
        processes.send(record, signal.SIGCONT)
    down.kill_all(here)
    if stack.process:
        stack.process.wait(10)
