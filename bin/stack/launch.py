"""Becomes a service: `launch.py SERVICES_FILE NAME`, run by the supervisor for each child.

Before it turns into the service (exec: the pid stays), it ends what is left of the service's
earlier process group, for a killed leader leaves its children behind, and records pid and start
time, so that `bin/down` finds the process even when the supervisor is dead. Environments are given
per service here: agents and engines never see the database's or Redis's address.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stack import processes


def end_earlier(folder: Path, name: str, stack_id: str) -> None:
    """Kill the children that an earlier, dead process of this service left in its group."""
    for record in processes.saved_records(folder):
        if record.name != name or record.group == os.getpgrp():
            continue
        ours = set(processes.marked_pids(stack_id))
        for pid in processes.group_members(record.group):
            if pid in ours or (pid == record.pid and processes.is_alive(record)):
                os.kill(pid, signal.SIGKILL)


def main(services_file: str, name: str) -> None:
    """Read what the service is, clear the way, leave a record, become it."""
    folder = Path(services_file).parent
    stack = json.loads(Path(services_file).read_text())
    service = stack["services"][name]
    end_earlier(folder, name, stack["id"])
    for sign in (f"{name}.alive", f"{name}.received"):
        (folder / sign).unlink(missing_ok=True)
    record = processes.describe(name, os.getpid())
    if record is None:
        sys.exit(f"{name}: this system does not tell when a process started")
    processes.save_record(folder, record)
    os.chdir(service["folder"])
    environment = {**service["environment"], processes.STACK_VARIABLE: stack["id"]}
    os.execve(service["command"][0], service["command"], environment)  # noqa: S606  (its purpose)


if __name__ == "__main__":
    main(*sys.argv[1:])
