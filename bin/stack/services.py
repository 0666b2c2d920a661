"""The table of services: what each one runs, sees, answers on, and how long its end may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stack.layout import Places, Ports

AGENTS = 2  # services agent-1 and so on, one each on nodes node-1 and so on
CHAT_MODEL = "llama-3.1-8b-instruct"
EMBEDDING_MODEL = "bge-m3"
SIMULATED_GPUS = "4,A100-SXM4-80GB,80GiB"  # of each demo node; real nodes ask the driver
KV_BLOCKS = "4000"  # of 16 tokens: small, so that the sample traffic visibly fills the KV cache
ENGINE_MODELS = (CHAT_MODEL, CHAT_MODEL, CHAT_MODEL, EMBEDDING_MODEL)

# What an agent or an engine must never see: the way to the database, to Redis and to sessions.
CONTROL_PLANE_ONLY = (
    "DATABASE_URL",
    "REDIS_URL",
    "SIGNALBOX_SECRET_KEY",
    "PGPASSWORD",
    "PGPASSFILE",
)

# bin/down waits this long for an agent's streams, then ends them.
AGENT_DRAIN_S = 20


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How to ask a service for its health: `http`, `redis`, `worker`, or the age of a `file`."""

    kind: str
    target: str
    secret_file: str = ""
    oldest_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process of the stack."""

    name: str
    command: tuple[str, ...]
    probe: Probe
    url: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    stop_order: int = 500  # the supervisor starts from the lowest and stops from the highest
    patience_s: int = 10
    stop_whole_group: bool = True

    def as_json(self) -> dict[str, Any]:
        """Give what services.json keeps for launch.py and bin/status."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a start was asked for and found: everything the table of services depends on."""

    ports: Ports
    demo: bool = True
    traffic: bool = True
    workers: int = 1  # processes of each agent
    redis_server: Path | None = None  # None: REDIS_URL names a real one
    redis_url: str = ""
    database_url: str = ""
    prometheus: Path | None = None
    prometheus_url: str = ""

    @property
    def console(self) -> str:
        """The address of the console and the API."""
        return local(self.ports.web)

    @property
    def engines(self) -> dict[int, str]:
        """Number of each simulated engine and the model it serves."""
        return dict(enumerate(ENGINE_MODELS, start=1)) if self.demo else {}


def local(port: int, path: str = "") -> str:
    """Give an address on loopback."""
    return f"http://127.0.0.1:{port}{path}"


def services(plan: Plan, places: Places) -> list[Service]:
    """List all services of a plan, in the order bin/status shows them."""
    return [*_services(plan, places)]


def _services(plan: Plan, places: Places) -> Iterator[Service]:
    yield from _control_plane(plan, places)
    if plan.redis_server:
        yield _redis(plan, places, plan.redis_server)
    if plan.prometheus:
        yield _prometheus(plan, places, plan.prometheus)
    if plan.demo and plan.traffic:
        yield _traffic(plan, places)
    yield from (_agent(plan, places, number) for number in range(1, AGENTS + 1))
    yield from (_engine(plan, places, n, model) for n, model in plan.engines.items())


def control_plane_environment(plan: Plan, places: Places) -> dict[str, str]:
    """Give the environment of Django's processes: the caller's, and where the parts are."""
    chosen = {
        "SIGNALBOX_VAR": str(places.var),
        "REDIS_URL": plan.redis_url,
        "DATABASE_URL": plan.database_url,
        "PROMETHEUS_URL": plan.prometheus_url,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
    }
    return {**_callers_environment(), **{name: value for name, value in chosen.items() if value}}


def data_plane_environment() -> dict[str, str]:
    """Give the environment of agents, engines and traffic: nothing of the control plane's."""
    kept = _callers_environment()
    for name in CONTROL_PLANE_ONLY:
        kept.pop(name, None)
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _callers_environment() -> dict[str, str]:
    # Python's own variables would change what the services import; ours say where this stack is.
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _control_plane(plan: Plan, places: Places) -> Iterator[Service]:
    environment = control_plane_environment(plan, places)
    root, python, port = str(places.root), str(places.python), str(plan.ports.web)
    yield Service(
        name="web",
        command=(python, "-m", "uvicorn", "controlplane.asgi:application", "--host", "127.0.0.1",
                 "--port", port, "--lifespan", "off", "--no-server-header", "--no-access-log",
                 "--no-proxy-headers", "--timeout-graceful-shutdown", "5",
                 "--log-level", "warning"),
        probe=Probe(kind="http", target=local(plan.ports.web, "/readyz")),
        url=plan.console,
        environment=environment,
        folder=root,
        stop_order=600,
    )  # fmt: skip
    yield Service(
        name="worker",
        command=(python, "-m", "celery", "-A", "controlplane", "worker", "--loglevel", "info",
                 "--hostname", "worker@signalbox", "--pidfile="),
        probe=Probe(kind="worker", target=str(places.run / "worker.alive"), oldest_s=15),
        environment=environment,
        folder=root,
        stop_order=700,
        stop_whole_group=False,  # the worker ends its own children, after their tasks
    )  # fmt: skip
    yield Service(
        name="beat",
        command=(python, "-m", "celery", "-A", "controlplane", "beat", "--loglevel", "info",
                 "--schedule", str(places.run / "beat-schedule"), "--pidfile="),
        probe=Probe(kind="file", target=str(places.run / "beat.alive"), oldest_s=15),
        environment=environment,
        folder=root,
        stop_order=800,
    )  # fmt: skip


def _redis(plan: Plan, places: Places, binary: Path) -> Service:
    return Service(
        name="redis",
        command=(str(binary), str(places.run / "redis.conf")),
        probe=Probe(
            kind="redis",
            target=f"127.0.0.1:{plan.ports.redis}",
            secret_file=str(places.secrets / "redis-password"),
        ),
        url=plan.redis_url,
        environment=data_plane_environment(),
        folder=str(places.var / "redis"),
        stop_order=100,
    )


def _prometheus(plan: Plan, places: Places, binary: Path) -> Service:
    return Service(
        name="prometheus",
        command=(str(binary), f"--config.file={places.run / 'prometheus.yml'}",
                 f"--storage.tsdb.path={places.var / 'prometheus'}",
                 "--storage.tsdb.retention.time=2d",
                 f"--web.listen-address=127.0.0.1:{plan.ports.prometheus}"),
        probe=Probe(kind="http", target=local(plan.ports.prometheus, "/-/ready")),
        url=local(plan.ports.prometheus),
        environment=data_plane_environment(),
        folder=str(places.root),
        stop_order=200,
    )  # fmt: skip


def node_name(number: int) -> str:
    """Give the name of an agent's node, as the console shows it."""
    return f"node-{number}"


def _agent(plan: Plan, places: Places, number: int) -> Service:
    node = node_name(number)
    home = places.var / "agents" / node
    return Service(
        name=f"agent-{number}",
        command=(str(places.python), "-m", "routing_agent", "agent",
                 "--control-plane", plan.console, "--name", node,
                 "--state-dir", str(home), "--token-file", str(home / "registration-token"),
                 "--adopt",  # moves along with a new database; once per token
                 "--port", str(plan.ports.traffic(number)),
                 "--admin-port", str(plan.ports.admin(number)),
                 "--drain-timeout", str(AGENT_DRAIN_S),
                 "--workers", str(plan.workers),
                 *(_demo_node(plan, number) if plan.demo else ())),
        probe=Probe(kind="http", target=local(plan.ports.admin(number), "/readyz")),
        url=local(plan.ports.traffic(number)),
        environment=data_plane_environment(),
        folder=str(places.root),
        stop_order=400,
        patience_s=AGENT_DRAIN_S + 5,
    )  # fmt: skip


def _demo_node(plan: Plan, number: int) -> tuple[str, ...]:
    """Give a demo node simulated GPUs, and leave to start simulated engines on them."""
    first, last = plan.ports.engines_of(number)
    return ("--simulated-gpus", SIMULATED_GPUS, "--engine-program", "simulated",
            "--engine-ports", f"{first}-{last}")  # fmt: skip


def _engine(plan: Plan, places: Places, number: int, model: str) -> Service:
    port = plan.ports.engine(number)
    return Service(
        name=f"engine-{number}",
        command=(str(places.python), "-m", "routing_agent", "simulate-engine",
                 "--port", str(port), "--model", model,
                 *(["--embedding"] if model == EMBEDDING_MODEL else ["--kv-blocks", KV_BLOCKS])),
        probe=Probe(kind="http", target=local(port, "/health")),
        url=local(port),
        environment=data_plane_environment(),
        folder=str(places.root),
        stop_order=300,
    )  # fmt: skip


def _traffic(plan: Plan, places: Places) -> Service:
    agents = [local(plan.ports.traffic(number)) for number in range(1, AGENTS + 1)]
    admins = [local(plan.ports.admin(number)) for number in range(1, AGENTS + 1)]
    alive = places.run / "traffic.alive"
    return Service(
        name="traffic",
        command=(str(places.python), "-m", "routing_agent", "sample-traffic", "--targets", *agents,
                 "--wait-for", *admins,
                 "--key-file", str(places.secrets / "traffic-keys.json"),
                 "--alive-file", str(alive)),
        probe=Probe(kind="file", target=str(alive), oldest_s=30),
        environment=data_plane_environment(),
        folder=str(places.root),
        stop_order=900,
    )  # fmt: skip
