"""The supervisor: its configuration, its start, and talking to it over its Unix socket."""

from __future__ import annotations

import getpass
import http.client
import os
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from xml.parsers.expat import ExpatError

from stack import processes
from stack.layout import Places
from stack.report import ProblemError
from stack.services import Service

NAME = "supervisor"

# killasgroup and stopasgroup: a service's children go with it. startretries: the pause between
# attempts grows by a second each time, so 100 attempts keep trying for well over an hour.
# Log files are named relative to `var`, where the supervisor runs: it trips over `%` in a path.
PROGRAM = """
[program:{name}]
command={python} -I {launcher} {services_file} {name}
priority={priority}
autostart=true
autorestart=true
startsecs=2
startretries=100
stopsignal=TERM
stopwaitsecs={patience_s}
stopasgroup={as_group}
killasgroup=true
redirect_stderr=true
stdout_logfile=log/{name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=3
"""
HEAD = """; Written by bin/up at every start; changes made here are lost.
[supervisord]
nodaemon=true
silent=true
user={user}
umask=077
logfile=log/supervisor.log
logfile_maxbytes=10MB
logfile_backups=2
pidfile=run/supervisor.pid
childlogdir=log
identifier=signalbox

[unix_http_server]
file={socket}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""


def configuration(places: Places, services: Iterable[Service]) -> str:
    """Write supervisord's configuration for these services."""
    head = HEAD.format(
        user=_escaped(getpass.getuser()),
        socket=_escaped(places.supervisor_socket),
    )
    return head + "".join(_program(places, service) for service in services)


def _program(places: Places, service: Service) -> str:
    return PROGRAM.format(
        name=service.name,
        python=_quoted(places.python),
        launcher=_quoted(Path(__file__).with_name("launch.py")),
        services_file=_quoted(places.services_file),
        priority=service.stop_order,
        patience_s=service.patience_s,
        as_group=str(service.stop_whole_group).lower(),
    )


def _escaped(text: object) -> str:
    """Protect `%`, which supervisor's configuration expands."""
    return str(text).replace("%", "%%")


def _quoted(path: Path) -> str:
    return f'"{_escaped(path)}"'


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Supervisor:
    """A running supervisor, as far as it answers."""

    def __init__(self, places: Places, *, timeout_s: float = 10.0) -> None:
        self._places = places
        self._timeout_s = timeout_s

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._exchange(f"supervisor.{name}", arguments)
        except (OSError, http.client.HTTPException, ExpatError) as error:
            raise ProblemError(
                f"the supervisor does not answer ({error}).",
                "bin/up repairs it: it stops what was left behind and starts anew.",
            ) from error

    def _exchange(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Make one XML-RPC call on a connection of its own: calls are rare."""
        connection = _UnixConnection(self._places.supervisor_socket, self._timeout_s)
        try:
            body = xmlrpc.client.dumps(arguments, name)
            connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}")
        return xmlrpc.client.loads(text)[0][0]

    def answers(self) -> bool:
        """Say whether there is a supervisor behind the socket, and whether it is working."""
        try:
            return bool(self._call("getState")["statename"] == "RUNNING")
        except ProblemError:
            return False

    def processes(self) -> dict[str, dict[str, Any]]:
        """Give supervisor's view of each service: `statename`, `pid`, `spawnerr`, …"""
        return {p["name"]: p for p in cast(list[dict[str, Any]], self._call("getAllProcessInfo"))}

    def start(self, name: str) -> None:
        """Start one service without waiting for it; running already is fine."""
        self._tolerate("startProcess", "ALREADY_STARTED", name)

    def stop(self, name: str) -> None:
        """Begin to stop one service; it stays down until it is started again."""
        self._tolerate("stopProcess", "NOT_RUNNING", name)

    def shut_down(self) -> None:
        """Begin to stop everything, the supervisor last."""
        self._tolerate("shutdown", "SHUTDOWN_STATE")

    def _tolerate(self, call: str, fine: str, *names: str) -> None:
        arguments: tuple[Any, ...] = (*names, False) if names else ()
        try:
            self._call(call, *arguments)
        except xmlrpc.client.Fault as fault:
            if fine not in fault.faultString:
                raise ProblemError(
                    f"the supervisor refused {call} {' '.join(names)}: {fault.faultString}.",
                    f"{self._places.shown(self._places.log / 'supervisor.log')} says why.",
                ) from fault


def start(places: Places, stack_id: str) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own and wait until it answers."""
    folder = places.supervisor_socket.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_foreign(folder)
    places.supervisor_socket.unlink(missing_ok=True)
    output = places.log / "supervisor.out"
    with output.open("ab") as sink:
        process = subprocess.Popen(
            [places.python, "-m", "supervisor.supervisord", "-c", places.run / "supervisord.conf"],
            cwd=places.var,
            env={**_plain_environment(), processes.STACK_VARIABLE: stack_id},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    record = processes.describe(NAME, process.pid)
    if record:
        processes.save_record(places.run, record)
    supervisor = Supervisor(places)
    if not processes.wait_until(
        lambda: supervisor.answers() or process.poll() is not None, limit_s=20
    ) or (process.poll() is not None):
        said = output.read_text(errors="replace").strip().splitlines()[-5:]
        raise ProblemError(
            "the supervisor did not start: " + " | ".join(said),
            f"read {places.shown(output)}; `bin/down` clears what is left of an earlier run.",
        )
    return process


def _refuse_foreign(folder: Path) -> None:
    """Never put the socket into a folder that somebody else made."""
    if folder.stat().st_uid != os.getuid():
        raise ProblemError(
            f"{folder} belongs to another user.", "set TMPDIR to a folder of your own."
        )


def _plain_environment() -> dict[str, str]:
    """What supervisord itself needs; services get theirs from launch.py."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PYTHONWARNINGS"] = "ignore"  # supervisor 4.3 still imports pkg_resources
    if sys.platform == "darwin":
        environment["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"
    return environment
