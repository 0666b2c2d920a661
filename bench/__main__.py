"""`bin/bench`: which benchmark to run, and how to show it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# Benchmark, what it measures. Each is a module here with `run(plan) -> Section`.
BENCHMARKS = {
    "relay": "what we and our peers cost a request: CPU, added latency, memory",
    "streams": "what we and our peers cost a streamed token, and add to the first one",
}
NOT_YET = ("control",)
# Programs with options of their own: a module here with `add_arguments` and `main`.
COMMANDS = {
    "routing": ("bench.routing", "every policy on real traces, by replay"),
    "choose": ("bench.choosing", "what a choice costs, by policy and size of the pool"),
    "scenarios": ("bench.scenarios.command", "what a fleet lives through, policy by policy"),
    "conversations": ("bench.conversations", "what policies find cached of multi-turn talks, live"),
    "workers": ("bench.workers", "what several processes of one agent cost and carry"),
    "load": ("bench.live.command", "a real trace's arrivals and lengths as live traffic"),
    "model": ("bench.model.command", "how far the engine model is off a live engine"),
}
NEEDED = ("httptools", "uvloop", "msgspec")
QUICK_SECONDS = 0.3


def _end(number: int, _frame: object) -> None:
    """End as by an error, so that whatever was started is stopped."""
    sys.exit(128 + number)


def main(words: list[str]) -> int:
    """Run what was asked for; gives the exit status."""
    signal.signal(signal.SIGTERM, _end)
    if words and words[0] in COMMANDS:
        return _command(words[0], words[1:])
    options = _parser().parse_args(words)
    if options.benchmark in NOT_YET:
        print(
            f"bin/bench {options.benchmark} does not exist yet. "
            f"There are: {', '.join(BENCHMARKS)}, all, setup, faults, drop-in, telemetry, "
            f"{', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        return 2
    if not _has_what_it_needs():
        return 1
    if options.benchmark == "setup":
        return int(import_module("bench.setup").run())
    if options.benchmark == "drop-in":
        if find_spec("openai") is None:
            print(
                "bin/bench drop-in: this Python has no openai; bin/test installs it.",
                file=sys.stderr,
            )
            return 1
        return int(import_module("bench.drop_in").run(options))
    if options.benchmark == "faults":
        return int(import_module("bench.faults").run(options))
    if options.benchmark == "telemetry":
        return int(import_module("bench.telemetry").run(options))
    return _measure(options)


def _command(name: str, words: list[str]) -> int:
    if not _has_what_it_needs():
        return 1
    if name == "choose":
        import_module("routing_agent.compiled").use()  # before anything else of the package
    module = import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(
        prog=f"bin/bench {name}", description=module.__doc__, allow_abbrev=False
    )
    module.add_arguments(parser)
    return int(module.main(parser.parse_args(words)))


def _has_what_it_needs() -> bool:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"bin/bench: this Python has no {', '.join(missing)}. bin/up --detach or bin/test "
            "makes the environment it needs (.venv).",
            file=sys.stderr,
        )
    return not missing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bin/bench", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "benchmark",
        choices=[
            *BENCHMARKS,
            "all",
            "setup",
            "faults",
            "drop-in",
            "telemetry",
            *COMMANDS,
            *NOT_YET,
        ],
        metavar="BENCHMARK",
        help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
        + "; all; setup: install the peers, each in an environment of its own"
        "; faults: whether every answer is right or a clear error while engines and clients fail"
        "; telemetry: a month of a large fleet's roll-ups, what it weighs and what pages take"
        "; drop-in: whether the openai client hears the same through an agent as from its engine"
        + "".join(f"; {name}: {what}" for name, (_, what) in COMMANDS.items())
        + f" ({', '.join(COMMANDS)}: --help after the name tells their options)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="for each measurement (default 2)"
    )
    parser.add_argument(
        "--peers", metavar="NAME,NAME…", help="measure only these beside signalbox (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that everything runs"
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    faults.add_argument("--rate", type=float, default=8.0, help="requests a second (default 8)")
    faults.add_argument("--seed", type=int, default=1, help="of the schedule (default 1)")
    faults.add_argument(
        "--broken-stream", choices=("end", "continue"), default="end", help="as of `serve`"
    )
    telemetry = parser.add_argument_group("telemetry")
    for name, count in (("days", 30), ("replicas", 1000), ("pools", 50)):
        telemetry.add_argument(f"--{name}", type=int, default=count, help=f"default {count}")
    drop_in = parser.add_argument_group("drop-in")
    drop_in.add_argument("--engine", metavar="URL", help="the engine, without /v1")
    drop_in.add_argument("--agent", metavar="URL", help="the agent before that engine alone")
    drop_in.add_argument("--engine-key", default="", metavar="KEY", help="the engine's API key")
    drop_in.add_argument(
        "--only", default="", metavar="WORD", help="questions that begin so: chat, embeddings, …"
    )
    drop_in.add_argument("--key", default="", metavar="KEY", help="a client key of the agent")
    return parser


def _measure(options: argparse.Namespace) -> int:
    from bench import report
    from bench.machine import BenchError
    from bench.rounds import Plan

    names = list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]
    try:
        peers = _peers(options.peers)
        plan = Plan(options.rounds, options.seconds, peers)
        if options.quick:
            plan = Plan(1, QUICK_SECONDS, peers, is_quick=True)
        sections = {name: import_module(f"bench.{name}").run(plan) for name in names}
    except BenchError as problem:
        print(f"bin/bench: {problem}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"machine": _machine(), **report.as_json(sections)}, indent=1))
    else:
        print(report.as_text(sections))
    return 0


def _peers(asked: str | None) -> tuple[str, ...]:
    from bench.machine import BenchError
    from bench.peers import NAMES, OURS

    if asked is None:
        return NAMES
    wanted = {name.strip() for name in asked.split(",")} | {OURS}
    unknown = wanted - set(NAMES)
    if unknown:
        raise BenchError(f"no peer {', '.join(sorted(unknown))}. There are: {', '.join(NAMES)}.")
    return tuple(name for name in NAMES if name in wanted)


def _machine() -> dict[str, object]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processors": os.cpu_count(),
        "model": models[0] if models else "unknown",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
