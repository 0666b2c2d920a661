"""One command changes the stack at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from stack import processes
from stack.layout import Places
from stack.report import ProblemError, say

LIMIT_S = 180.0


@contextmanager
def exclusive(here: Places) -> Iterator[None]:
    """Hold the stack's lock; the system frees it when its holder dies, so it is never stale."""
    here.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (here.run / "lock").open("w") as lock:
        if not _taken(lock.fileno()):
            say("Another bin/up or bin/down is at work here; waiting for it …")
            if not processes.wait_until(lambda: _taken(lock.fileno()), limit_s=LIMIT_S):
                raise ProblemError(
                    f"another bin/up or bin/down has been at work for {LIMIT_S:.0f} s.",
                    "look at it, end it if it hangs, then run this again.",
                )
        yield


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
