"""Are the ports free, and if not, who has them?"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from stack.layout import HIGHEST_OFFSET, Ports
from stack.report import ProblemError

LISTEN = "0A"  # the state's code in /proc/net/tcp


def check_base(base: int) -> None:
    """Refuse a base from which some port would be privileged or too high."""
    if not 1024 <= base <= 65535 - HIGHEST_OFFSET:
        raise ProblemError(
            f"--port-base {base} does not leave room for the stack's ports.",
            f"choose one from 1024 to {65535 - HIGHEST_OFFSET}, for example --port-base 9000.",
        )


def is_free(port: int) -> bool:
    """Say whether a service could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def require_free(wanted: dict[str, int], ports: Ports) -> None:
    """Refuse to start while a port is taken; the message names port, holder and the way out."""
    taken = {name: port for name, port in wanted.items() if not is_free(port)}
    if not taken:
        return
    shown = ", ".join(f"{port} ({name}){_held_by(port)}" for name, port in taken.items())
    raise ProblemError(
        f"port{'s' * (len(taken) > 1)} already taken: {shown}.",
        f"stop what holds it, or start elsewhere: bin/up --port-base {_suggested(wanted, ports)}",
    )


def _suggested(wanted: dict[str, int], ports: Ports) -> int:
    for base in range(ports.base + 1000, 60000, 1000):
        shift = base - ports.base
        if all(is_free(port + shift) for port in wanted.values()):
            return base
    return 20000


def _held_by(port: int) -> str:
    holder = holder_of(port)
    return f", held by {holder}" if holder else ""


def holder_of(port: int) -> str:
    """Name the process listening on a port, where the system lets us see it; else nothing."""
    sockets = _listening_sockets(port)
    for folder in Path("/proc").glob("[0-9]*"):
        if sockets and sockets & _open_sockets(folder):
            return f"pid {folder.name} ({_command(folder)[:80]})"
    return ""


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:  # it has ended meanwhile
        return "ended meanwhile"
    return words.decode(errors="replace").strip()


def _listening_sockets(port: int) -> set[str]:
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN:
                found.add(f"socket:[{fields[9]}]")
    return found


def _open_sockets(folder: Path) -> set[str]:
    return set(_links(folder / "fd"))


def _links(folder: Path) -> Iterable[str]:
    try:
        for link in folder.iterdir():
            yield str(link.readlink())
    except OSError:  # another user's process, or gone
        return
