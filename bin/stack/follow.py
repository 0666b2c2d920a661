"""The readable log of a stack in the foreground: every service's log file, line by line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.report import say

INTERVAL_S = 0.25
QUIET = frozenset({"timestamp", "level", "event", "logger"})


@dataclass(slots=True)
class _Place:
    """How far one log file has been read."""

    path: Path
    inode: int = 0
    offset: int = 0


class Follower:
    """Reads what is appended to the log files of a folder, also across their rotation."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._places = {name: _Place(folder / f"{name}.log") for name in names}
        for place in self._places.values():
            if place.path.exists():
                found = place.path.stat()
                place.inode, place.offset = found.st_ino, found.st_size

    def lines(self) -> Iterator[str]:
        """Give what is new since the last call, made readable."""
        for name, place in self._places.items():
            yield from (readable(name, line) for line in _new_lines(place))


def _new_lines(place: _Place) -> list[str]:
    """Read the complete lines behind the place; half a line waits for its end."""
    try:
        source = place.path.open("rb")
    except FileNotFoundError:
        return []
    with source:
        found = os.fstat(source.fileno())
        if found.st_ino != place.inode or found.st_size < place.offset:
            place.inode, place.offset = found.st_ino, 0
        source.seek(place.offset)
        complete, newline, _ = source.read().rpartition(b"\n")
    place.offset += len(complete) + len(newline)
    return complete.decode(errors="replace").splitlines()


def readable(name: str, line: str) -> str:
    """Turn a JSON log line into `time service event key=value`; leave another line as it is."""
    fields = _fields(line)
    if fields is None:
        return f"{time.strftime('%H:%M:%S')} {name:<9} {line}"
    clock = str(fields.get("timestamp", ""))[11:19] or time.strftime("%H:%M:%S")
    level = str(fields.get("level", "info"))
    mark = "" if level in {"info", "debug"} else f"{level.upper()} "
    rest = " ".join(f"{k}={v}" for k, v in fields.items() if k not in QUIET)
    return f"{clock} {name:<9} {mark}{fields.get('event', '')} {rest}".rstrip()


def _fields(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def follow(folder: Path, names: list[str], is_over: Callable[[], bool]) -> None:
    """Print new log lines until it is over (or the reader interrupts)."""
    follower = Follower(folder, names)
    while not is_over():
        for line in follower.lines():
            say(line)
        time.sleep(INTERVAL_S)
