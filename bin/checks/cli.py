"""The command line of bin/test."""

from __future__ import annotations

import os
import sys
from functools import partial

from stack import credentials, environment
from stack.layout import places
from stack.report import ProblemError, tell

from checks import machine, stages
from checks.outcome import Run
from checks.stages import Tools
from checks.tests import Suite

HELP = """usage: bin/test [fast | tour] [words for pytest …]

  bin/test          lint, types, import contracts, Django's checks and every test,
                    the control plane's on SQLite and on a throw-away PostgreSQL
  bin/test fast     the inner loop: lint and what needs no server
  bin/test tour     the end-to-end story: the real stack, killed piece by piece

Further words go to pytest: bin/test fast -k breaker. With words, coverage has no floor.
What this machine lacks is skipped and listed at the end; with CI=true a skip is a failure,
except for tests that want the sample data beside the checkout."""


def main(words: list[str]) -> int:
    """Run the stages that were asked for; problems are told with their remedy."""
    if words[:1] in (["-h"], ["--help"]):
        print(HELP)
        return 0
    try:
        return _run(words)
    except ProblemError as problem:
        tell(problem)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    kind = words[0] if words[:1] and words[0] in {"fast", "tour"} else "all"
    rest = words if kind == "all" else words[1:]
    here = places()
    credentials.ensure_folders(here)
    environment.ensure(here, [environment.RUNTIME, environment.DEVELOPMENT])
    run = Run(strict=os.environ.get("CI", "").lower() in {"1", "true"})
    tools = Tools(here)
    programs = machine.inspect(here)
    suite = Suite(run=run, tools=tools, machine=programs, words=rest)
    if kind == "fast":
        stages.quick(run, tools)
        suite.fast()
    elif kind == "tour":
        suite.tour()
    else:
        run.lacks = programs.lacks()
        stages.quick(run, tools)
        suite.all(partial(stages.thorough, run, tools))
    return run.close()
