"""What several processes of one agent cost and carry: the same load on agents of 1, 2 and 4.

    bin/bench workers --workers 1 2 4 --connections 32 --apart --stream-tokens 20

All agents run at once before the same canned engines and get the load in turn, in rounds; the
medians of the rounds are told. Everything that a request meets in production is on: see
`bench.agent`. How much more is carried depends on the cores that engines and clients leave. With
`--apart` there are as many agents that share nothing, for what several processes cost in any case:
each has fewer requests at a time to save system calls with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.machine import BenchError, Process, free_ports
from routing_agent.wire import PoolSettings


@dataclass(frozen=True, slots=True)
class Agents:
    """One agent, or several that get a load together."""

    processes: list[Process]
    workers: int  # of each

    def cpu_s(self) -> float:
        """Give the CPU seconds used so far, of all."""
        return sum(one.cpu_s() for one in self.processes)

    def memory_mib(self) -> float:
        """Give the resident memory now, of all."""
        return sum(one.memory_mib() for one in self.processes)


@contextlib.contextmanager
def started(options: argparse.Namespace, folder: Path) -> Iterator[list[Agents]]:
    """Run engines and agents for as long as the context lasts."""
    wanted = [(1, n) for n in options.workers]
    if options.apart:
        wanted += [(n, 1) for n in options.workers if n > 1]
    ports = free_ports(options.engines + sum(count for count, _ in wanted))
    engines, own = ports[: options.engines], ports[options.engines :]
    with contextlib.ExitStack() as stack:

        def start(name: str, words: list[str], port: int) -> Process:
            process = Process(name, [sys.executable, "-m", *words], port, folder)
            stack.callback(process.stop)
            return process

        running = [start(f"engine-{p}", ["bench.engine", str(p)], p) for p in engines]
        agents = []
        for count, workers in wanted:
            processes = []
            for port in [own.pop() for _ in range(count)]:
                home = folder / f"agent-{port}"
                home.mkdir()
                words = ["bench.agent", str(port), str(home), *map(str, engines)]
                words += ["--workers", str(workers), "--policy", options.policy]
                processes.append(start(f"agent-{port}", words, port))
            agents.append(Agents(processes, workers))
        for process in (*running, *(one for group in agents for one in group.processes)):
            process.await_port(60.0)
        for group in agents:
            if group.workers > 1:
                weigh(group.processes[0], group.workers)
        yield agents


def weigh(agent: Process, workers: int) -> None:
    """Let an agent of several processes have the share of busy cores that as many agents have.

    Linux gives each session one share (autogroup), and an agent is one session here. A nice of -3
    doubles it. Where there are no such groups, or this may not be changed, nothing happens.
    """
    place = Path(f"/proc/{agent.pid}/autogroup")
    with contextlib.suppress(OSError):
        place.write_text(str(-round(3 * math.log2(workers))))


def measured(asked: load.Load, agents: Agents) -> dict[str, float]:
    """Put one load on one agent, or on several together."""
    result = load.run(asked, [one.port for one in agents.processes], agents)
    if result.problems or not result.answered:
        first = agents.processes[0]
        raise BenchError(f"{first.name}: {dict(result.problems)} {first.last_words()}")
    return {
        "requests_per_s": result.answered / asked.seconds,
        "cpu_us_per_request": 1e6 * result.cpu_s / result.answered,
        "latency_p50_ms": load.percentile_ms(sorted(result.latencies_s), 0.5) or 0.0,
        "latency_p99_ms": load.percentile_ms(sorted(result.latencies_s), 0.99) or 0.0,
    }


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure all in rounds; gives a row for each number of workers, and of agents apart."""
    tokens = options.stream_tokens
    request = load.chat(
        stream=tokens is not None, tokens=tokens or 100, prompt_bytes=options.prompt_bytes
    )
    asked = load.Load(request, options.connections, options.seconds, tokens, warm_up=request)
    rows = []
    with started(options, folder) as agents:
        rounds = [[measured(asked, group) for group in agents] for _ in range(options.rounds)]
        for group, found in zip(agents, zip(*rounds, strict=True), strict=True):
            row: dict[str, Any] = {"agents": len(group.processes), "workers": group.workers}
            row |= {"connections": options.connections, "cores": os.cpu_count()}
            medians = {name: round(median(one[name] for one in found), 1) for name in found[0]}
            rows.append(row | medians)
    for row in rows:
        row["cpu_ratio"] = round(row["cpu_us_per_request"] / rows[0]["cpu_us_per_request"], 2)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `workers`."""
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-bytes", type=int, default=200)
    parser.add_argument("--policy", default=PoolSettings().policy, metavar="NAME")
    parser.add_argument("--stream-tokens", type=int, metavar="N", help="streams of so many")
    parser.add_argument("--apart", action="store_true", help="also agents that share nothing")


def main(options: argparse.Namespace) -> int:
    """Measure and print a line of JSON for each number of workers."""
    try:
        with tempfile.TemporaryDirectory(prefix="signalbox-bench-") as folder:
            for row in run(options, Path(folder)):
                print(json.dumps(row), flush=True)
    except BenchError as problem:
        print(f"bin/bench workers: {problem}", file=sys.stderr)
        return 1
    return 0
