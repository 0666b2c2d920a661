"""An agent under mixed faults: every answer right or a clear error, and nothing left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.fault_clients import ANSWER_LIMIT_S, Clients
from bench.fault_schedule import Injector, ScriptedEngine
from bench.machine import ENGINES, BenchError, Process

MINUTE_S = 60.0
QUIET_LIMIT_S = 20.0  # from the last answer until nothing may be left
WARM_UP_MINUTES = 5
STEADY_MINUTES = 10  # after the warm-up: below, a slope says nothing
GROWTH_LIMIT = 0.1  # of the memory after the warm-up, over the rest of the run
SPARE_DESCRIPTORS = ENGINES * 4  # probes keep up to 4 idle connections to an engine
LIMITS = (
    "--ttft-timeout=2",
    "--stall-timeout=2",
    "--connect-timeout=0.5",
    "--end-to-end-timeout=20",  # the only limit of plain answers that may be of any length
    "--retry-backoff=0.05",
    "--retry-budget=0.3",
    "--breaker-failures=4",
    "--breaker-open=2",
    "--probe-interval=0.5",
    "--probe-timeout=0.5",
    "--queue-deadline=3",
    "--slow-start=1",
    "--queue-limit=32",
)
# Below the ports that the kernel gives to connections: an engine that restarts gets its own again.
FIRST_PORT = 24000
TROUBLE = ("Traceback", '"exception"', "never retrieved", "was destroyed", '"level": "error"')


@dataclass(frozen=True, slots=True)
class Quiet:
    """What was left of a minute's traffic once all of it had ended."""

    minute: float
    running_requests: int
    inflight_requests: int
    inflight_tokens: int
    open_connections: int
    descriptors: int
    memory_mib: float

    def leaks(self, descriptors: int) -> list[str]:
        """Name what should not be there; `descriptors` were open before any traffic."""
        left = [
            f"{getattr(self, name)} {name.replace('_', ' ')}"
            for name in (
                "running_requests",
                "inflight_requests",
                "inflight_tokens",
                "open_connections",
            )
            if getattr(self, name)
        ]
        if self.descriptors > descriptors + SPARE_DESCRIPTORS:
            left.append(f"{self.descriptors} descriptors, {descriptors} at the start")
        return [f"minute {self.minute:g}: {one} left" for one in left]


@dataclass
class Run:
    """The figures of a run."""

    clients: Clients
    descriptors: int  # before any traffic
    minutes: list[Quiet] = field(default_factory=list)
    injected: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def findings(self) -> list[str]:
        """Give everything that must not be."""
        leaks = [leak for minute in self.minutes for leak in minute.leaks(self.descriptors)]
        wrong = [f"WRONG {one}" for one in self.clients.wrong]
        return wrong + leaks + memory_findings(self.minutes) + self.problems

    def as_json(self) -> dict[str, Any]:
        """Give all figures for programs."""
        return {
            "answers": {
                f"{kind}: {why}".removesuffix(": "): count
                for (kind, why), count in sorted(self.clients.verdicts.items())
            },
            "clients": {
                f"{way}: {kind}": count
                for (way, kind), count in sorted(self.clients.by_way.items())
            },
            "injected": self.injected,
            "minutes": [asdict(minute) for minute in self.minutes],
            "memory_slope_mib_a_minute": slope(self.minutes[WARM_UP_MINUTES:]),
            "descriptors_at_start": self.descriptors,
            "findings": self.findings(),
        }


def slope(minutes: list[Quiet]) -> float | None:
    """Give the memory's growth in MiB a minute, by least squares; `None` for too few figures."""
    if len(minutes) < 2:
        return None
    middle = sum(m.minute for m in minutes) / len(minutes)
    spread = sum((m.minute - middle) ** 2 for m in minutes)
    return sum((m.minute - middle) * m.memory_mib for m in minutes) / spread


def memory_findings(minutes: list[Quiet]) -> list[str]:
    """Say whether the memory grew steadily after the warm-up."""
    steady = minutes[WARM_UP_MINUTES:]
    growth = slope(steady)
    if growth is None or len(steady) < STEADY_MINUTES:
        return []
    grown = growth * (steady[-1].minute - steady[0].minute)
    if grown <= GROWTH_LIMIT * steady[0].memory_mib:
        return []
    return [f"memory grew by {grown:.1f} MiB from {steady[0].memory_mib:.1f} MiB"]


def log_findings(text: str) -> list[str]:
    """Give the lines of the agent's log that speak of a defect of its own."""
    return [
        f"agent's log: {line[:300]}"
        for line in text.splitlines()
        if any(sign in line for sign in TROUBLE)
    ]


def run(options: argparse.Namespace) -> int:
    """Run it and print what came of it; gives the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="signalbox-faults-"))
    try:
        done = asyncio.run(_faults(options, folder))
    except BenchError as problem:
        print(f"bin/bench: {problem}", file=sys.stderr)
        return 1
    print(json.dumps(done.as_json(), indent=1) if options.json else as_text(done))
    if done.findings():
        print(f"The logs are kept: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


async def _faults(options: argparse.Namespace, folder: Path) -> Run:
    ports = _fixed_ports(ENGINES + 2)
    seeds = random.Random(options.seed)
    engines = [ScriptedEngine(port, folder, seeds.randrange(2**32)) for port in ports[2:]]
    agent = None
    try:
        for engine in engines:
            await engine.start()
        agent = Process("agent", _command(options, ports), ports[0], folder)
        await asyncio.to_thread(agent.await_port)
        drill = Drill(agent, engines, ports, seeds, options.rate)
        await drill.run(options.minutes)
        drill.done.problems += _exit_findings(agent)
        return drill.done
    finally:
        if agent is not None and agent.is_alive:
            agent.stop()
        for engine in engines:
            engine.stop()


def _exit_findings(agent: Process) -> list[str]:
    if not agent.is_alive:
        return [f"the agent ended by itself. {agent.last_words()}"]
    agent.stop()
    return log_findings(agent.output())


def _command(options: argparse.Namespace, ports: list[int]) -> list[str]:
    urls = [f"http://127.0.0.1:{port}" for port in ports[2:]]
    listen = ["--port", str(ports[0]), "--admin-port", str(ports[1])]
    start = [sys.executable, "-m", "routing_agent", "serve", "--broken-stream"]
    return [*start, options.broken_stream, *listen, *LIMITS, "--worker-urls", *urls]


class Drill:
    """Traffic and faults, and a look at what is left after each minute."""

    def __init__(
        self,
        agent: Process,
        engines: list[ScriptedEngine],
        ports: list[int],
        seeds: random.Random,
        rate: float,
    ) -> None:
        self.agent = agent
        self.rate = rate
        self.injector = Injector(engines, random.Random(seeds.randrange(2**32)))
        clients = Clients(ports[0], random.Random(seeds.randrange(2**32)))
        self._admin = f"http://127.0.0.1:{ports[1]}/agent/v1/state"
        self._gaps = random.Random(seeds.randrange(2**32))
        self.done = Run(clients, descriptors=0)

    async def run(self, minutes: float) -> None:
        """Run for so long, the looks between the minutes not counted."""
        await self._until_ready()
        self.done.descriptors = self.agent.descriptors()
        told = 0.0
        while told < minutes:
            span = min(1.0, minutes - told)
            told += span
            await self._minute(span * MINUTE_S)
            if not self.agent.is_alive:
                return
            quiet = await self._quiet(told)
            self.done.minutes.append(quiet)
            self.done.injected = dict(sorted(self.injector.injected.items()))
            print(_progress(self.done, quiet), file=sys.stderr, flush=True)

    async def _minute(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        faults = asyncio.create_task(self.injector.run(until=end))
        async with asyncio.TaskGroup() as clients:
            while time.monotonic() < end:
                clients.create_task(self.done.clients.act())
                await asyncio.sleep(self._gaps.expovariate(self.rate))
        await faults

    async def _until_ready(self) -> None:
        end = time.monotonic() + QUIET_LIMIT_S
        while any(r.get("health") != "healthy" for r in (await self._state())["replicas"]):
            if time.monotonic() > end:
                raise BenchError(f"its engines are not healthy. {self.agent.last_words()}")
            await asyncio.sleep(0.1)

    async def _quiet(self, minute: float) -> Quiet:
        """Wait until nothing is left, or for as long as something may be."""
        end = time.monotonic() + QUIET_LIMIT_S
        while True:
            quiet = self._seen(minute, await self._state())
            if not quiet.leaks(self.done.descriptors) or time.monotonic() > end:
                return quiet
            await asyncio.sleep(0.2)

    def _seen(self, minute: float, state: dict[str, Any]) -> Quiet:
        replicas = state["replicas"] + state["leaving"]
        return Quiet(
            minute=round(minute, 2),
            running_requests=state["running_requests"],
            inflight_requests=sum(r.get("inflight_requests", 0) for r in replicas),
            inflight_tokens=sum(r.get("inflight_tokens", 0) for r in replicas),
            open_connections=state["open_connections"],
            descriptors=self.agent.descriptors(),
            memory_mib=round(self.agent.memory_mib(), 1),
        )

    async def _state(self) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            with urlopen(self._admin, timeout=ANSWER_LIMIT_S) as answer:
                return dict(json.load(answer))

        try:
            return await asyncio.to_thread(read)
        except OSError as problem:
            raise BenchError(
                f"no state of the agent: {problem}. {self.agent.last_words()}"
            ) from None


def _progress(done: Run, quiet: Quiet) -> str:
    kinds = {kind: 0 for kind in ("right", "error", "left")}
    for (kind, _), count in done.clients.verdicts.items():
        kinds[kind] += count
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    return (
        f"minute {quiet.minute:g}: {told}, {len(done.clients.wrong)} WRONG; "
        f"{sum(done.injected.values())} faults; {quiet.memory_mib:.1f} MiB, "
        f"{quiet.descriptors} descriptors, {len(done.findings())} findings"
    )


def as_text(done: Run) -> str:
    """Give the summary for people."""
    told = done.as_json()
    lines: list[str] = []
    for title in ("answers", "clients", "injected"):
        lines += [title, *(f"  {name:44}{count:>9,}" for name, count in told[title].items()), ""]
    memory = " ".join(f"{minute.memory_mib:.1f}" for minute in done.minutes)
    growth = told["memory_slope_mib_a_minute"]
    lines.append(f"memory, MiB by minute: {memory}")
    if growth is not None:
        lines.append(f"slope after {WARM_UP_MINUTES} minutes: {growth:+.3f} MiB a minute")
    for last in done.minutes[-1:]:
        lines.append(f"descriptors: {done.descriptors} before, {last.descriptors} after")
        lines.append(
            f"in flight after: {last.inflight_requests} requests, {last.inflight_tokens} tokens; "
            f"{last.open_connections} connections open"
        )
    findings = done.findings()
    return "\n".join([*lines, "", *(findings or ["Nothing wrong, nothing left behind."])])


def _fixed_ports(count: int) -> list[int]:
    """Give free ports that stay ours while one of their processes is down."""
    found: list[int] = []
    first = FIRST_PORT + os.getpid() % 900
    for port in range(first, first + 1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise BenchError(f"fewer than {count} free ports above {first}.")
