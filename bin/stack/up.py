"""`bin/up`: from a bare checkout to a healthy stack, as often as you like."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack import (
    control_plane,
    credentials,
    down,
    environment,
    follow,
    health,
    introduction,
    ports,
    processes,
    prometheus,
    redis_server,
    status,
    supervise,
)
from stack.exclusive import exclusive
from stack.layout import DEFAULT_PORT_BASE, Places, Ports, places
from stack.report import ProblemError, say, step, tell
from stack.services import Plan, Service, services
from stack.supervise import Supervisor

HEALTHY_LIMIT_S = 150.0
ONE_HEALTHY_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asked for."""

    detach: bool = False
    empty: bool = False
    traffic: bool = True
    port_base: int | None = None
    workers: int = 1  # processes of each agent

    @property
    def remembered(self) -> dict[str, Any]:
        """What makes one running stack differ from another."""
        return {"port_base": self.port_base or DEFAULT_PORT_BASE, "empty": self.empty,
                "traffic": self.traffic, "workers": self.workers}  # fmt: skip


def run(options: Options, name: str | None) -> int:
    """Start all (or bring one service back), wait until it is healthy, say how to use it."""
    here = places()
    if name:
        return bring_back(here, name)
    # SIGINT too: whoever starts us in the background may have had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with exclusive(here):
        started = _start_or_join(here, options)
        is_well = wait_until_healthy(here, HEALTHY_LIMIT_S) and introduction.first_answer(here)
    if not is_well:
        return 1
    say(introduction.text(here))
    if options.detach or not started:
        return 0
    return in_foreground(here)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _start_or_join(here: Places, options: Options) -> bool:
    """Start the stack; False if it runs already and only needed what had fallen over."""
    credentials.ensure(here)
    if Supervisor(here).answers():
        _join(here, options)
        return False
    _clear_leftovers(here)
    plan = prepare(here, options)
    table = services(plan, here)
    _write(here, options, plan, table)
    with step("start services") as under_way:
        supervise.start(here, credentials.stack_id(here))
        under_way.outcome = f"{len(table)} started"
    return True


def _join(here: Places, options: Options) -> None:
    """Accept a stack that runs as asked, and bring back what it holds down."""
    running = status.known(here)["options"]
    asked = options.remembered
    differs = [k for k in asked if asked[k] != running.get(k, asked[k]) and _was_asked(k, options)]
    if differs:
        shown = ", ".join(f"{k.replace('_', '-')}={running[k]}" for k in differs)
        raise ProblemError(
            f"Signalbox runs already, with other options ({shown}).",
            "stop it first: bin/down, then bin/up with the new ones.",
        )
    say("Signalbox runs already.")
    supervisor = Supervisor(here)
    for name, state in supervisor.processes().items():
        if state["statename"] in {"STOPPED", "EXITED", "FATAL"}:
            supervisor.start(name)


def _was_asked(option: str, options: Options) -> bool:
    return option != "port_base" or options.port_base is not None


def _clear_leftovers(here: Places) -> None:
    """End what a killed supervisor left running: nobody would restart or stop it any more."""
    left = processes.living(here.run, credentials.stack_id(here))
    if left:
        names = ", ".join(sorted({r.name for r in left}))
        say(f"An earlier run was cut short and left processes behind: {names}.")
    down.stop_all(here, quiet=True)


def prepare(here: Places, options: Options) -> Plan:
    """Do everything that comes before the first process."""
    base = options.port_base or DEFAULT_PORT_BASE
    ports.check_base(base)
    environment.ensure(here)
    plan = make_plan(here, options, Ports(base))
    ports.require_free(_ports(plan, services(plan, here)), plan.ports)
    if plan.redis_server:
        redis_server.configure(here, plan.ports)
    if plan.prometheus:
        prometheus.configure(here, plan)
    control_plane.prepare(plan, here)
    return plan


def make_plan(here: Places, options: Options, numbers: Ports) -> Plan:
    """Decide what is embedded and what is real, by the three URLs and the PATH."""
    real_redis, real_prometheus = os.environ.get("REDIS_URL"), os.environ.get("PROMETHEUS_URL")
    binary = None if real_prometheus else shutil.which("prometheus")
    return Plan(
        ports=numbers,
        demo=not options.empty,
        traffic=options.traffic,
        workers=options.workers,
        redis_server=None if real_redis else redis_server.find(here),
        redis_url=real_redis or redis_server.url(here, numbers),
        database_url=os.environ.get("DATABASE_URL", ""),
        prometheus=Path(binary) if binary else None,
        prometheus_url=real_prometheus or (prometheus.url(numbers) if binary else ""),
    )


def _ports(plan: Plan, table: list[Service]) -> dict[str, int]:
    """List every port the stack is about to take, by what for."""
    numbers = plan.ports
    wanted = {"web": numbers.web}
    for service in table:
        kind, _, number = service.name.partition("-")
        if kind == "agent":
            wanted[f"{service.name} traffic"] = numbers.traffic(int(number))
            wanted[f"{service.name} admin"] = numbers.admin(int(number))
        elif kind == "engine":
            wanted[service.name] = numbers.engine(int(number))
        elif kind in {"redis", "prometheus"}:
            wanted[kind] = getattr(numbers, kind)
    return wanted


def _write(here: Places, options: Options, plan: Plan, table: list[Service]) -> None:
    for service in table:
        Path(service.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    stack = {
        "id": credentials.stack_id(here),
        "console": plan.console,
        "options": options.remembered,
        "services": {s.name: s.as_json() for s in table},
    }
    credentials.write_private(here.services_file, json.dumps(stack, indent=1))
    credentials.write_private(here.run / "supervisord.conf", supervise.configuration(here, table))


def wait_until_healthy(here: Places, limit_s: float, only: str | None = None) -> bool:
    """Wait for health; say who is not healthy and where to look if it takes too long."""
    table = status.known(here)["services"]
    watched = {name: s for name, s in table.items() if only in (None, name)}
    seen: list[health.Seen] = []

    def all_well() -> bool:
        seen[:] = health.look(here, watched)
        return all(s.health == "ok" for s in seen)

    with step("wait until healthy") as under_way:
        well = processes.wait_until(all_well, limit_s=limit_s, every_s=0.5)
        under_way.outcome = f"{sum(s.health == 'ok' for s in seen)} of {len(seen)} well"
    if not well:
        _tell_unhealthy(here, [s for s in seen if s.health != "ok"], limit_s)
    return well


def _tell_unhealthy(here: Places, ill: list[health.Seen], limit_s: float) -> None:
    for one in ill:
        log = here.log / f"{one.name}.log"
        tell(
            ProblemError(
                f"{one.name} is {one.health} after {limit_s:.0f} s: {one.detail or 'no process'}.",
                f"read {here.shown(log)}, which ends with:",
            )
        )
        for line in _tail(log):
            say(f"    {line}")
    say("\nWhat runs goes on running: bin/status looks again, bin/down stops it.")


def _tail(log: Path, lines: int = 6) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []


def in_foreground(here: Places) -> int:
    """Show the log until Ctrl-C, then stop everything."""
    say("Ctrl-C stops all of it.\n")
    names = list(status.known(here)["services"])
    supervisor = [r for r in processes.saved_records(here.run) if r.name == supervise.NAME]
    try:
        follow.follow(here.log, names, lambda: not any(map(processes.is_alive, supervisor)))
        say("\nThe supervisor has ended: stopping what is left.")
    except KeyboardInterrupt:
        say("\nStopping (Ctrl-C again: at once).")
    return _stop_all(here)


def _stop_all(here: Places) -> int:
    def stop() -> None:
        with exclusive(here):
            down.stop_all(here)

    return _again_at_once(here, stop)


def _again_at_once(here: Places, stop: Callable[[], None]) -> int:
    try:
        stop()
    except KeyboardInterrupt:
        say("\nKilling what is left.")
        down.kill_all(here)
    return 0


def bring_back(here: Places, name: str) -> int:
    """Start one service that is held down and wait until it is healthy."""
    supervisor = down.require_running(here, name)
    supervisor.start(name)
    return 0 if wait_until_healthy(here, ONE_HEALTHY_LIMIT_S, only=name) else 1
