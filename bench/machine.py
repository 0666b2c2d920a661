"""Processes under test: started in a scratch folder, their CPU and memory read from /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KEY = "sk-bench"
MODEL = "m"
ENGINES = 4

NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-errors;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 16m; client_body_buffer_size 1m;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engines {{ least_conn; {servers} keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=1024; tcp_nodelay on;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Connection ""; }} }}
}}
"""


class BenchError(Exception):
    """The benchmark cannot run; the message says why."""


class Process:
    """A process under test, its children included."""

    def __init__(self, name: str, command: list[str], port: int, folder: Path) -> None:
        self.port = port
        self._name = name
        self._errors = folder / f"{name}-output"
        with self._errors.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    def await_port(self, limit_s: float = 20.0) -> None:
        """Wait until it listens, or say what it said instead."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        said = self._errors.read_text(errors="replace")[-2000:]
        raise BenchError(f"{self._name} does not listen on port {self.port}. It said:\n{said}")

    def cpu_s(self) -> float:
        """Give the CPU seconds used so far, user and system."""
        return sum(_cpu_s(pid) for pid in self._pids())

    def memory_mib(self) -> float:
        """Give the resident memory now."""
        return sum(_resident_mib(pid) for pid in self._pids())

    def stop(self) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _pids(self) -> list[int]:
        found, open_pids = [], [self._process.pid]
        while open_pids:
            pid = open_pids.pop()
            found.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            open_pids += [int(child) for child in children.split()]
        return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def peers() -> Iterator[dict[str, Process]]:
    """Start engines, nginx (if it is installed) and our agent; give what clients may talk to.

    `engine` is one engine without anything in front: the floor of every latency.
    """
    if not Path("/proc/self/stat").exists():
        raise BenchError("CPU times are read from /proc, which this system does not have")
    ports = _free_ports(ENGINES + 3)
    engine_ports = ports[:ENGINES]
    with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as name:
        folder = Path(name)
        started: list[Process] = []
        try:
            for port in engine_ports:
                command = [sys.executable, "-m", "bench.engine", str(port)]
                started.append(Process(f"engine-{port}", command, port, folder))
            for engine in started:
                engine.await_port()
            found = {"engine": started[0]}
            for peer, process in _in_front(folder, engine_ports, ports[ENGINES:]):
                started.append(process)
                process.await_port()
                found[peer] = process
            yield found
        finally:
            for process in reversed(started):
                process.stop()


def _in_front(
    folder: Path, engine_ports: list[int], ports: list[int]
) -> Iterator[tuple[str, Process]]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx:
        servers = " ".join(f"server 127.0.0.1:{port};" for port in engine_ports)
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, servers=servers, port=ports[0]))
        command = [nginx, "-c", str(config), "-p", str(folder)]
        yield "nginx", Process("nginx", command, ports[0], folder)
    keys = folder / "client-keys"
    keys.write_text(f"bench {KEY}\n")
    keys.chmod(0o600)
    urls = [f"http://127.0.0.1:{port}" for port in engine_ports]
    command = [
        sys.executable, "-m", "routing_agent", "serve", "--worker-urls", *urls,
        "--client-key-file", str(keys), "--port", str(ports[1]), "--admin-port", str(ports[2]),
    ]  # fmt: skip
    yield "signalbox", Process("signalbox", command, ports[1], folder)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def progress(text: str) -> None:
    """Show on standard error what is being measured."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:70}", end=end, file=sys.stderr, flush=True)
