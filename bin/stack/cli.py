"""The command line of bin/up, bin/down and bin/status."""

from __future__ import annotations

import argparse
import sys

from stack import down, exclusive, layout, status, up
from stack.report import ProblemError, tell

UP = """Makes .venv, installs, migrates, starts everything under a supervisor and waits until
it is healthy. Run twice, it is harmless. DATABASE_URL, REDIS_URL and PROMETHEUS_URL switch to
real ones."""
DOWN = (
    "Stops everything, in order and gracefully; with a name, holds that service down (for drills)."
)
STATUS = "Says what runs. The exit code is 0 if every service is well, else 1."


def main(words: list[str]) -> int:
    """Run one command; problems are told with their remedy."""
    commands = {"up": _up, "down": _down, "status": _status}
    try:
        return commands[words[0]](words[1:])
    except ProblemError as problem:
        tell(problem)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; bin/up goes on from here, bin/down clears up.", file=sys.stderr)
        return 130


def _up(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bin/up", description=UP)
    parser.add_argument("service", nargs="?", help="bring back one service that is held down")
    parser.add_argument("--detach", action="store_true", help="return once everything is healthy")
    parser.add_argument("--empty", action="store_true", help="no demo fleet")
    parser.add_argument("--no-traffic", action="store_true", help="no sample traffic")
    parser.add_argument("--port-base", type=int, metavar="N", help="count ports from N (8000)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes of each agent (1)"
    )
    given = parser.parse_args(words)
    options = up.Options(
        detach=given.detach,
        empty=given.empty,
        traffic=not given.no_traffic,
        port_base=given.port_base,
        workers=given.workers,
    )
    return up.run(options, given.service)


def _down(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bin/down", description=DOWN)
    parser.add_argument("service", nargs="?", help="hold only this one down")
    name = parser.parse_args(words).service
    with exclusive.exclusive(layout.places()):
        return down.run(name)


def _status(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bin/status", description=STATUS)
    parser.add_argument("--json", action="store_true", help="for scripts")
    return status.run(as_json=parser.parse_args(words).json)
