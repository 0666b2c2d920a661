"""How the commands speak: a step and its seconds, or a problem and its remedy."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ProblemError(Exception):
    """Something the reader can put right: what happened, and what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def tell(problem: ProblemError) -> None:
    """Print a problem and its remedy on standard error."""
    print(f"error: {problem.message}", file=sys.stderr)
    for number, line in enumerate(problem.remedy.splitlines()):
        print(f"  {'remedy: ' if number == 0 else ''}{line}", file=sys.stderr)


def say(text: str = "") -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


class Step:
    """A step under way; what it did can be added to its line."""

    def __init__(self) -> None:
        self.outcome = "done"


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Print `title … outcome  seconds` around a piece of work."""
    print(f"  {title:<22}", end=" ", flush=True)
    started = time.monotonic()
    under_way = Step()
    try:
        yield under_way
    except BaseException:
        say("failed")
        raise
    say(f"{under_way.outcome}  ({time.monotonic() - started:.1f} s)")
