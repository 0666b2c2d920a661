"""`bin/bench`: which benchmark to run, and how to show it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import import_module
from importlib.util import find_spec

# Benchmark, what it measures. Each is a module here with `run(rounds) -> Section`.
BENCHMARKS = {
    "relay": "CPU and latency that the agent adds to a request",
    "streams": "CPU that the agent adds to a streamed token",
}
NOT_YET = ("routing", "choose", "control", "load", "setup")


def main(words: list[str]) -> int:
    """Run what was asked for; gives the exit status."""
    options = _parser().parse_args(words)
    if options.benchmark in NOT_YET:
        print(
            f"bin/bench {options.benchmark} does not exist yet. "
            f"There are: {', '.join(BENCHMARKS)}, all.",
            file=sys.stderr,
        )
        return 2
    missing = [name for name in ("httptools", "uvloop", "msgspec") if find_spec(name) is None]
    if missing:
        print(
            f"bin/bench: this Python has no {', '.join(missing)}. bin/up --detach or bin/test "
            "makes the environment it needs (.venv).",
            file=sys.stderr,
        )
        return 1
    return _measure(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bin/bench", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "benchmark",
        choices=[*BENCHMARKS, "all", *NOT_YET],
        metavar="BENCHMARK",
        help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items()) + "; all",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    return parser


def _measure(options: argparse.Namespace) -> int:
    from bench import report
    from bench.machine import BenchError

    names = list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]
    try:
        sections = {
            name: import_module(f"bench.{name}").run(options.rounds, options.seconds)
            for name in names
        }
    except BenchError as problem:
        print(f"bin/bench: {problem}", file=sys.stderr)
        return 1
    if options.json:
        machine = {"processors": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, **report.as_json(sections)}, indent=1))
    else:
        print(report.as_text(sections))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
