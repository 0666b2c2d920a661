"""The readable log of a stack in the foreground: every service's log file, line by line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

INTERVAL_S = 0.25
QUIET = frozenset({"timestamp", "level", "event", "logger"})


class Follower:
    """Reads what is appended to the log files of a folder, also across their rotation."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._paths = {name: folder / f"{name}.log" for name in names}
        self._open: dict[str, BinaryIO] = {}
        for name in names:
            self._reopen(name, at_end=True)

    def _reopen(self, name: str, *, at_end: bool) -> None:
        path = self._paths[name]
        if path.exists():
            if name in self._open:
                self._open[name].close()
            self._open[name] = path.open("rb")
            if at_end:
                self._open[name].seek(0, 2)

    def lines(self) -> Iterator[str]:
        """Give what is new since the last call, made readable."""
        for name in self._paths:
            yield from (readable(name, line) for line in self._new(name))

    def _new(self, name: str) -> Iterator[str]:
        if name not in self._open or self._was_rotated(name):
            self._reopen(name, at_end=False)
        source = self._open.get(name)
        if source is None:
            return
        while line := source.readline():
            if not line.endswith(b"\n"):  # still being written: next time
                source.seek(-len(line), 1)
                return
            yield line.decode(errors="replace").rstrip()

    def _was_rotated(self, name: str) -> bool:
        try:
            return self._paths[name].stat().st_size < self._open[name].tell()
        except FileNotFoundError:
            return False


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
            print(line)
        time.sleep(INTERVAL_S)
