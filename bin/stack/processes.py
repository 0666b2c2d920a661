"""Finds and ends the processes of a stack, however they were orphaned; never by their name.

Two marks tell ours from others': the record that `launch.py` writes before it becomes the service
(pid, start time, process group), and the stack's id in the environment, which every descendant
inherits. A pid whose start time differs is somebody else's by now.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

STACK_VARIABLE = "SIGNALBOX_STACK"
PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessRecord:
    """One process as it was seen: enough to know it again."""

    name: str
    pid: int
    started: str  # as the system states it: ticks since boot on Linux, a date elsewhere
    group: int


def start_mark(pid: int) -> str | None:
    """Tell when a process started, in the system's words; None if it is gone or a zombie."""
    if PROC.joinpath("self", "stat").exists():
        fields = _stat_fields(pid)
        return fields[19] if fields and fields[0] not in "ZX" else None
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return shown[1].strip() if len(shown) == 2 and not shown[0].startswith("Z") else None


def _stat_fields(pid: int) -> list[str] | None:
    """Give the fields of /proc/PID/stat from the third on (state, ppid, pgrp, … starttime)."""
    try:
        return PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def describe(name: str, pid: int) -> ProcessRecord | None:
    """Record a living process; None if it is gone."""
    started = start_mark(pid)
    if started is None:
        return None
    try:
        return ProcessRecord(name=name, pid=pid, started=started, group=os.getpgid(pid))
    except ProcessLookupError:
        return None


def is_alive(record: ProcessRecord) -> bool:
    """Say whether the recorded process still runs, and is not another one with its old pid."""
    return start_mark(record.pid) == record.started


def save_record(folder: Path, record: ProcessRecord) -> None:
    """Write `NAME.pid.json`, replacing the one before in one move."""
    target = folder / f"{record.name}.pid.json"
    draft = target.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(target)


def saved_records(folder: Path) -> list[ProcessRecord]:
    """Read all records of a folder; one that was cut short by a crash is passed over."""
    records = []
    for path in sorted(folder.glob("*.pid.json")):
        try:
            records.append(ProcessRecord(**json.loads(path.read_text())))
        except (ValueError, TypeError):
            continue
    return records


def forget_records(folder: Path) -> None:
    """Delete all records: nothing of the stack runs any more."""
    for path in folder.glob("*.pid.json"):
        path.unlink(missing_ok=True)


def marked_pids(stack_id: str) -> list[int]:
    """List the processes that carry this stack's id in their environment (Linux only)."""
    wanted = f"{STACK_VARIABLE}={stack_id}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and wanted in _environment(pid)]


def _pids() -> list[int]:
    return [int(p.name) for p in PROC.iterdir() if p.name.isdigit()] if PROC.exists() else []


def _environment(pid: int) -> list[bytes]:
    try:
        return PROC.joinpath(str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def group_members(group: int) -> list[int]:
    """List the living processes of a process group (Linux), or its leader elsewhere."""
    if not PROC.exists():
        return [group] if start_mark(group) else []
    stats = ((pid, _stat_fields(pid)) for pid in _pids())
    return [pid for pid, f in stats if f and f[0] not in "ZX" and int(f[2]) == group]


def living(folder: Path, stack_id: str) -> list[ProcessRecord]:
    """List every process of the stack: recorded ones, and any other that carries its id."""
    found = {r.pid: r for r in saved_records(folder) if is_alive(r)}
    for pid in marked_pids(stack_id):
        record = describe(_name_of(pid, found.values()), pid)
        if record and pid not in found:
            found[pid] = record
    return list(found.values())


def _name_of(pid: int, known: Iterable[ProcessRecord]) -> str:
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return "gone"
    return next((r.name for r in known if r.pid == group), f"process {pid}")


def end(records: Iterable[ProcessRecord], *, patience_s: float) -> None:
    """Ask processes to stop, wait for all of them, then kill the groups of those that did not."""
    waiting = list(records)
    for record in waiting:
        send(record, signal.SIGTERM)
    wait_until(lambda: not any(is_alive(r) for r in waiting), limit_s=patience_s)
    for record in waiting:
        send(record, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(r) for r in waiting), limit_s=5.0)


def send(record: ProcessRecord, number: int) -> None:
    """Signal a recorded process, with its group where it leads one of its own."""
    if not is_alive(record):
        return
    try:
        if record.group == record.pid and number == signal.SIGKILL:
            os.killpg(record.group, number)
        else:
            os.kill(record.pid, number)
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], bool], *, limit_s: float, every_s: float = 0.1) -> bool:
    """Wait for a condition; False if it did not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
