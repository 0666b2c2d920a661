"""Asks each service for its health: its own endpoint where it has one, its heartbeat file else."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stack import processes
from stack.layout import Places
from stack.report import ProblemError
from stack.supervise import Supervisor

TIMEOUT_S = 2.0
GRACE_S = 45.0  # from its start, a service that does not answer yet is starting, then unhealthy


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One service as it is now."""

    name: str
    pid: int | None
    url: str | None
    health: str  # ok, starting, unhealthy, down
    detail: str = ""


def look(places: Places, services: Mapping[str, Mapping[str, Any]]) -> list[Seen]:
    """Look at all services at once."""
    running = _running(places)
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(lambda name: _look_at(name, services[name], running), services))


def _running(places: Places) -> dict[str, dict[str, Any]]:
    """Give each service's process: as the supervisor says, or as recorded if it is gone."""
    try:
        return Supervisor(places, timeout_s=TIMEOUT_S).processes()
    except ProblemError:
        records = processes.saved_records(places.run)
        return {
            r.name: {"pid": r.pid, "statename": "ORPHANED"}
            for r in records
            if processes.is_alive(r)
        }


def _look_at(
    name: str, service: Mapping[str, Any], running: Mapping[str, Mapping[str, Any]]
) -> Seen:
    state = running.get(name, {})
    pid = state.get("pid") or None
    if pid is None:
        return Seen(
            name=name, pid=None, url=service["url"], health="down", detail=_why_down(name, state)
        )
    trouble = ask(service["probe"])
    health = "ok" if not trouble else ("starting" if _is_young(state) else "unhealthy")
    return Seen(name=name, pid=pid, url=service["url"], health=health, detail=trouble)


def _why_down(name: str, state: Mapping[str, Any]) -> str:
    kind = state.get("statename", "")
    if kind == "STOPPED":
        return f"held down; bin/up {name} brings it back"
    if kind in {"BACKOFF", "FATAL", "EXITED"}:
        return f"keeps failing ({state.get('spawnerr') or kind.lower()}); read its log"
    return ""


def _is_young(state: Mapping[str, Any]) -> bool:
    if "start" not in state:
        return False
    return bool(state["statename"] == "STARTING" or state["now"] - state["start"] < GRACE_S)


def ask(probe: Mapping[str, Any]) -> str:
    """Ask one service; empty text means that it is well, else the text says what is wrong."""
    kinds = {"http": _ask_http, "redis": _ask_redis, "file": _ask_file, "worker": _ask_worker}
    try:
        return kinds[probe["kind"]](probe)
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer: {str(error) or type(error).__name__}"


def _ask_http(probe: Mapping[str, Any]) -> str:
    parts = urlsplit(probe["target"])
    connection = http.client.HTTPConnection(
        parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S
    )
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        text = answer.read(500).decode(errors="replace")
    finally:
        connection.close()
    if answer.status == 200:
        return ""
    is_page = text.lstrip().startswith("<")
    return f"{parts.path} says {answer.status}" + (
        "" if is_page else f": {' '.join(text.split())}"[:160]
    )


def _ask_redis(probe: Mapping[str, Any]) -> str:
    host, _, port = probe["target"].partition(":")
    password = Path(probe["secret_file"]).read_text().strip()
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
        answer = b""
        while answer.count(b"\r\n") < 2:
            piece = connection.recv(200)
            if not piece:
                break
            answer += piece
    return "" if answer.endswith(b"+PONG\r\n") else f"answers {answer.decode(errors='replace')!r}"


def _ask_file(probe: Mapping[str, Any]) -> str:
    age_s = _age_s(Path(probe["target"]))
    if age_s is None:
        return "has not given a sign of life yet"
    return "" if age_s <= probe["oldest_s"] else f"last sign of life {age_s:.0f} s ago"


def _ask_worker(probe: Mapping[str, Any]) -> str:
    """A worker may beat and still take nothing: where beat sends, something must arrive."""
    trouble = _ask_file(probe)
    folder = Path(probe["target"]).parent
    sent_s, received_s = _age_s(folder / "beat.alive"), _age_s(folder / "worker.received")
    if trouble or sent_s is None or sent_s > probe["oldest_s"]:
        return trouble
    if received_s is None or received_s > 2 * probe["oldest_s"]:
        shown = "none yet" if received_s is None else f"the last {received_s:.0f} s ago"
        return f"takes no tasks off its queue ({shown})"
    return ""


def _age_s(path: Path) -> float | None:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
