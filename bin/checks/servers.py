"""A throw-away PostgreSQL for tests, on a free port and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stack import processes
from stack.report import ProblemError

START_LIMIT_S = 30.0
USER = "signalbox"
# PostgreSQL refuses to run as root: one of these, which every Linux has, takes its place.
UNPRIVILEGED = ("postgres", "nobody")
# Its data is thrown away, so it need not survive a power cut.
HASTY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")


def free_port() -> int:
    """Ask the system for a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def postgresql(programs: Path) -> Iterator[str]:
    """Run a new PostgreSQL and give its URL."""
    account = _unprivileged()
    with _folder("postgresql", account) as folder:
        password = secrets.token_urlsafe(16)
        _initialise(programs, folder, password, account)
        port = free_port()
        settings = [f"port={port}", "listen_addresses=127.0.0.1", *HASTY]
        settings.append(f"unix_socket_directories={folder}")
        words = [str(programs / "postgres"), "-D", str(folder / "data")]
        for setting in settings:
            words += ["-c", setting]
        # It listens a moment before it lets anybody in; its log says when it does.
        with _running(words, folder, account, lambda: _says_ready(folder), stop=signal.SIGINT):
            yield f"postgresql://{USER}:{password}@127.0.0.1:{port}/postgres"


def _unprivileged() -> pwd.struct_passwd | None:
    """Choose the account for PostgreSQL; None: our own will do."""
    if os.getuid() != 0:
        return None
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ProblemError(
        "PostgreSQL does not run as root, and there is neither a user postgres nor nobody.",
        "run bin/test as an ordinary user.",
    )


@contextlib.contextmanager
def _folder(name: str, account: pwd.struct_passwd | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"signalbox-{name}-"))
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _initialise(
    programs: Path, folder: Path, password: str, account: pwd.struct_passwd | None
) -> None:
    password_file = folder / "password"
    password_file.write_text(password)
    if account:
        os.chown(password_file, account.pw_uid, account.pw_gid)
    done = subprocess.run(
        [programs / "initdb", "-D", folder / "data", "-U", USER, "--pwfile", password_file,
         "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"],
        cwd=folder, capture_output=True, text=True, **_as(account),
    )  # fmt: skip
    if done.returncode != 0:
        raise ProblemError(
            f"initdb failed: {done.stderr.strip().splitlines()[-1:]}",
            "set DATABASE_URL to a PostgreSQL that may be written to, and run bin/test again.",
        )


def _as(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def _running(
    words: list[str],
    folder: Path,
    account: pwd.struct_passwd | None,
    is_ready: Callable[[], bool],
    *,
    stop: signal.Signals,
) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, **_as(account),
        )  # fmt: skip
    try:
        if not processes.wait_until(is_ready, limit_s=START_LIMIT_S):
            said = (folder / "log").read_text(errors="replace").splitlines()[-3:]
            raise ProblemError(f"{words[0]} did not start: {' | '.join(said)}")
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _says_ready(folder: Path) -> bool:
    return "ready to accept connections" in (folder / "log").read_text(errors="replace")
