"""Who is measured beside us: how each is set up and started, in front of the same engines."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import ENGINES, KEY, MODEL, ROOT, BenchError, Process, free_ports, progress
from routing_agent import compiled

ENGINE = "engine"
OURS = "signalbox"
COMPILED = "signalbox compiled"
REFERENCE = "nginx"
VENVS = ROOT / "var" / "bench"
READY_LIMIT_S = 120.0
ASK_LIMIT_S = 10.0
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"

# In each configuration: one worker, kept-alive connections on both sides, nothing buffered.
NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-errors;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 16m; client_body_buffer_size 1m;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engines {{ {balance}; {servers} keepalive 1024; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=2048; tcp_nodelay on;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Connection ""; }} }}
}}
"""
HAPROXY = """
global
  maxconn 8192
  nbthread 1
defaults
  mode http
  balance leastconn
  option http-no-delay
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend clients
  bind 127.0.0.1:{port} backlog 2048
  default_backend engines
backend engines
{servers}
"""
LITELLM = """
model_list:
{models}
router_settings:
  routing_strategy: simple-shuffle
general_settings:
  master_key: {key}
"""


class Absent(Exception):
    """A peer cannot be measured here; the message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer is to run."""

    folder: Path
    port: int
    second_port: int
    engine_ports: list[int]

    @property
    def urls(self) -> list[str]:
        """The engines' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.engine_ports]


Command = Callable[[Place], list[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One router, and how to start it."""

    name: str
    command: Command
    env: Mapping[str, str] = field(default_factory=dict)
    is_slow: bool = False  # gets fewer requests, or a run would take hours


@dataclass(frozen=True, slots=True)
class Field:
    """Everything that runs in one benchmark."""

    running: dict[str, Process]
    slow: frozenset[str]
    absent: dict[str, str]  # peer, reason
    engine_ports: list[int]

    def ports(self, name: str) -> list[int]:
        """Give the ports a load on this peer goes to: all engines where nothing is in front."""
        return self.engine_ports if name == ENGINE else [self.running[name].port]


def nginx(balance: str) -> Command:
    """Give how nginx is started with this directive of its upstream."""

    def command(place: Place) -> list[str]:
        program = system_program("nginx")
        servers = " ".join(f"server 127.0.0.1:{port};" for port in place.engine_ports)
        config = place.folder / "nginx.conf"
        config.write_text(
            NGINX.format(folder=place.folder, balance=balance, servers=servers, port=place.port)
        )
        return [program, "-c", str(config), "-p", str(place.folder)]

    return command


def _haproxy(place: Place) -> list[str]:
    program = system_program("haproxy")
    servers = "\n".join(f"  server e{port} 127.0.0.1:{port}" for port in place.engine_ports)
    config = place.folder / "haproxy.conf"
    config.write_text(HAPROXY.format(servers=servers, port=place.port))
    return [program, "-db", "-f", str(config)]


def _ours(place: Place) -> list[str]:
    engines = [str(port) for port in place.engine_ports]
    return [sys.executable, "-m", "bench.agent", str(place.port), str(place.folder), *engines]


def ours(*words: str) -> Command:
    """Give how our agent is started, compiled where it has been; `words` are its options."""
    return lambda place: [*_ours(place), *words]


def ours_compiled(*words: str) -> Command:
    """Give how our agent is started as it ships; `words` are more of its options."""

    def command(place: Place) -> list[str]:
        if not (compiled.place() / compiled.DONE).is_file():
            raise Absent("not compiled: bin/compile")
        return [*_ours(place), *words]

    return command


def sglang(policy: str) -> Command:
    """Give how sglang-router is started with this policy, its dials as they come."""

    def command(place: Place) -> list[str]:
        return [
            venv_program("sglang-router", "python"), "-m", "sglang_router.launch_router",
            "--host", "127.0.0.1", "--port", str(place.port), "--policy", policy,
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.second_port),
            "--log-level", "warn", "--max-concurrent-requests", "-1",
            "--worker-urls", *place.urls,
        ]  # fmt: skip

    return command


def vllm(policy: str) -> Command:
    """Give how vllm-router is started with this policy, its dials as they come."""

    def command(place: Place) -> list[str]:
        return [
            venv_program("vllm-router", "vllm-router"),
            "--host", "127.0.0.1", "--port", str(place.port), "--policy", policy,
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.second_port),
            "--log-level", "warning", "--max-concurrent-requests", "8192",
            "--worker-urls", *place.urls,
        ]  # fmt: skip

    return command


def _litellm(place: Place) -> list[str]:
    program = venv_program("litellm", "litellm")
    models = "\n".join(
        f"  - model_name: {MODEL}\n    litellm_params:\n      model: hosted_vllm/{MODEL}\n"
        f"      api_base: {url}/v1\n      api_key: none"
        for url in place.urls
    )
    config = place.folder / "litellm.yaml"
    config.write_text(LITELLM.format(models=models, key=KEY))
    return [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]


_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "NO_DOCS": "True",
}
# The Rust routers by their cheapest policy that looks at load, and by the one for prefixes.
PEERS = (
    Peer(REFERENCE, nginx("least_conn")),
    Peer(OURS, _ours, env={compiled.OFF: "1"}),
    Peer(COMPILED, ours_compiled()),
    Peer("haproxy", _haproxy),
    Peer("vllm-router", vllm("sticky_least_loaded")),
    Peer("vllm-router cache_aware", vllm("cache_aware")),
    Peer("sglang-router", sglang("power_of_two")),
    Peer("sglang-router cache_aware", sglang("cache_aware")),
    Peer("litellm", _litellm, env=_QUIET, is_slow=True),
)
NAMES = tuple(peer.name for peer in PEERS)


@contextlib.contextmanager
def running(names: tuple[str, ...] = NAMES) -> Iterator[Field]:
    """Start the engines and the peers of these names; those that cannot run are told with why."""
    if not Path("/proc/self/stat").exists():
        raise BenchError("CPU and memory are read from /proc, which this system does not have.")
    with (
        tempfile.TemporaryDirectory(prefix="signalbox-bench-") as scratch,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(scratch)
        engines = []
        for port in free_ports(ENGINES):
            command = [sys.executable, "-m", "bench.engine", str(port)]
            engines.append(_start(stack, f"{ENGINE}-{port}", command, port, folder))
        for engine in engines:
            engine.await_port()
        ports = [engine.port for engine in engines]
        chosen = [peer for peer in PEERS if peer.name in names]
        found = Field(
            {ENGINE: engines[0]}, frozenset(p.name for p in chosen if p.is_slow), {}, ports
        )
        for peer in chosen:
            progress(f"starting {peer.name}")
            try:
                found.running[peer.name] = start_peer(stack, peer, folder, ports)
            except Absent as reason:
                found.absent[peer.name] = str(reason)
        if OURS in found.absent:
            raise BenchError(found.absent[OURS])
        yield found


def start_peer(
    stack: contextlib.ExitStack, peer: Peer, scratch: Path, engine_ports: list[int]
) -> Process:
    """Start a peer before these engines and wait until it answers; raises `Absent`."""
    folder = scratch / peer.name.replace(" ", "-")
    folder.mkdir()
    port, second_port = free_ports(2)
    place = Place(folder, port, second_port, engine_ports)
    process = _start(stack, peer.name, peer.command(place), place.port, folder, peer.env)
    _await_answer(process)
    return process


def _start(
    stack: contextlib.ExitStack,
    name: str,
    command: list[str],
    port: int,
    folder: Path,
    env: Mapping[str, str] | None = None,
) -> Process:
    process = Process(name, command, port, folder, env)
    stack.callback(process.stop)
    return process


def _await_answer(process: Process) -> None:
    """Wait until the peer has answered a request of ours well, through to an engine."""
    end = time.monotonic() + READY_LIMIT_S
    last = "no answer"
    while time.monotonic() < end and process.is_alive:
        last = _ask(process.port)
        if last == "":
            return
        time.sleep(0.2)
    state = "does not get ready" if process.is_alive else "ended at its start"
    raise Absent(f"{state} ({last}). {process.last_words()}")


def _ask(port: int) -> str:
    """Send one request; give what is wrong with the answer."""
    body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"hello"}}]}}'
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_LIMIT_S)
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if answer.status == 200 else f"status {answer.status}: {text[:200]!r}"


def system_program(name: str) -> str:
    """Give a program of the system."""
    found = shutil.which(name) or shutil.which(name, path=SYSTEM_FOLDERS)
    if found is None:
        raise Absent(f"not on PATH: install the package {name}")
    return found


def venv_program(peer: str, program: str) -> str:
    """Give a program of a peer's own environment."""
    path = VENVS / peer / "bin" / program
    if not path.exists():
        raise Absent("not installed: bin/bench setup")
    return str(path)
