"""What several processes of one agent cost and carry: the same load on agents of 1, 2 and 4.

    bin/bench workers --workers 1 2 4 --connections 32

All agents run at once before the same canned engines and get the load in turn, in rounds; the
medians of the rounds are told. Everything that a request meets in production is on: see
`bench.agent`. How much more is carried depends on the cores that engines and clients leave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench import load
from bench.machine import BenchError, Process, free_ports


@contextlib.contextmanager
def started(options: argparse.Namespace, folder: Path) -> Iterator[dict[int, Process]]:
    """Run engines and agents for as long as the context lasts."""
    ports = free_ports(options.engines + len(options.workers))
    engines, own = ports[: options.engines], ports[options.engines :]
    with contextlib.ExitStack() as stack:

        def start(name: str, words: list[str], port: int) -> Process:
            process = Process(name, [sys.executable, "-m", *words], port, folder)
            stack.callback(process.stop)
            return process

        running = [start(f"engine-{p}", ["bench.engine", str(p)], p) for p in engines]
        agents = {}
        for workers, port in zip(options.workers, own, strict=True):
            home = folder / f"agent-{workers}"
            home.mkdir()
            words = ["bench.agent", str(port), str(home), *map(str, engines)]
            words += ["--workers", str(workers)]
            agents[workers] = start(f"agent-{workers}", words, port)
        for process in (*running, *agents.values()):
            process.await_port(60.0)
        yield agents


def measured(asked: load.Load, agent: Process) -> dict[str, float]:
    """Put one load on one agent."""
    result = load.run(asked, [agent.port], agent)
    if result.problems or not result.answered:
        raise BenchError(f"{agent.name}: {dict(result.problems)} {agent.last_words()}")
    return {
        "requests_per_s": result.answered / asked.seconds,
        "cpu_us_per_request": 1e6 * result.cpu_s / result.answered,
        "latency_p50_ms": load.percentile_ms(sorted(result.latencies_s), 0.5) or 0.0,
        "latency_p99_ms": load.percentile_ms(sorted(result.latencies_s), 0.99) or 0.0,
    }


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure all in rounds; gives a row for each number of workers."""
    request = load.chat(stream=False, prompt_bytes=options.prompt_bytes)
    asked = load.Load(request, options.connections, options.seconds, warm_up=request)
    rounds: dict[int, list[dict[str, float]]] = {workers: [] for workers in options.workers}
    with started(options, folder) as agents:
        for _ in range(options.rounds):
            for workers, agent in agents.items():
                rounds[workers].append(measured(asked, agent))
    return [
        {"workers": workers, "connections": options.connections, "cores": os.cpu_count()}
        | {name: round(median(one[name] for one in found), 1) for name in found[0]}
        for workers, found in rounds.items()
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `workers`."""
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-bytes", type=int, default=200)


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
