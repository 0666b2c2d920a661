"""Knows a process again: by its pid and when it started, or by a mark in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
MARK: Final = "SIGNALBOX_ENGINE_OF"  # in the environment of every engine that an agent starts


def start_mark(pid: int) -> str:
    """Say when a process started, in the system's words; "" if it is gone or a zombie."""
    if PROC.joinpath("self", "stat").exists():
        fields = _stat(pid)
        return fields[19] if fields and fields[0] not in "ZX" else ""
    done = subprocess.run(  # noqa: S603 - a fixed command, without a shell
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()


def marked_pid(mark: str) -> int:
    """Give the living process that carries this mark; 0 if there is none (Linux only).

    An engine's children carry it too: the engine is the one that leads the group.
    """
    found = marked_pids(mark)
    return next((pid for pid in found if _leads(pid)), found[0] if found else 0)


def marked_pids(mark: str) -> list[int]:
    """List the living processes that carry this mark in their environment (Linux only)."""
    wanted = f"{MARK}={mark}".encode()
    pids = [int(p.name) for p in PROC.iterdir() if p.name.isdigit()] if PROC.exists() else []
    return [pid for pid in pids if wanted in _environment(pid) and start_mark(pid)]


def tell(pid: int, number: signal.Signals, *, group: bool) -> None:
    """Signal a process, or its whole group; one that is gone is no fault."""
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return


def _stat(pid: int) -> list[str]:
    """Give the fields of /proc/PID/stat from the third on (state, ppid, pgrp, … starttime)."""
    try:
        return PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
