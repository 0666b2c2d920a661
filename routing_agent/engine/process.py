"""Engine processes of this node: started, watched, stopped; they outlive the agent.

An engine is one process group of its own, with a record on disk written before it starts. After a
restart of the agent it is known again by pid and start time, or by a mark in its environment if the
agent died while it started. Nothing is started twice: a replica has at most one process, and an
action's number that was obeyed is not obeyed again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from routing_agent.engine import marks
from routing_agent.engine.command import CommandRefused, StartCommand
from routing_agent.engine.programs import EngineRules
from routing_agent.wire import Action, ActionReceipt, EngineProcess, StartEngine, StopEngine

log = structlog.get_logger()

LOOK_PAUSE_S: Final = 0.5
LOG_LIMIT_BYTES: Final = 4 * 1024 * 1024  # of a log, and of the older part kept beside it
TAIL_CHARACTERS: Final = 1500
ENDED_KEPT_S: Final = 3600.0  # far longer than any action may be under way
_KEY: Final = re.compile(
    r"""(--api-key[ =]|api_key['"]?\s*[=:]\s*\[?['"]?)(?!None\b)[^\s'",\])]+""", re.IGNORECASE
)
NOT_PASSED_ON: Final = ("SIGNALBOX_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS")


class EngineRecord(msgspec.Struct, kw_only=True):
    """What is kept on disk of one replica's process."""

    replica: str
    serial: int
    state: str = "running"
    pid: int = 0
    mark: str = ""  # its start, in the system's words
    started_at: float | None = None
    port: int = 0
    gpus: tuple[int, ...] = ()
    kill_at: float = 0.0  # Unix seconds: the end of a stopping engine's patience
    ended_at: float = 0.0
    detail: str = ""
    log_tail: str = ""

    @property
    def is_live(self) -> bool:
        """Say whether its process is meant to be there."""
        return self.state in ("running", "stopping")


@dataclass
class EngineProcesses:
    """All engine processes that this agent started, by replica."""

    rules: EngineRules
    folder: Path  # of records and logs
    write: Callable[[Path, bytes], None]  # durably
    clock: Callable[[], float] = time.time
    _records: dict[str, EngineRecord] = field(default_factory=dict)
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def adopt(self) -> None:
        """Take over what an earlier life of this agent left: processes that run, and records."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self.folder.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=EngineRecord)
            except (OSError, msgspec.MsgspecError) as error:
                log.error("engine_record_unreadable", file=path.name, why=str(error))
                continue
            self._records[record.replica] = record
            if record.is_live and not record.pid:
                self._find_again(record)
            log.info("engine_adopted", replica=record.replica, pid=record.pid, state=record.state)
        self.look()

    async def obey(self, action: Action, now: float) -> ActionReceipt:
        """Take one action, or say why not; `now` is the control plane's time."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._obey, action, now)

    async def watch(self) -> None:
        """Look after the processes until cancelled; they run on."""
        while True:
            async with self._one_at_a_time:
                await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_PAUSE_S)

    def report(self) -> tuple[EngineProcess, ...]:
        """Give what the control plane is told of each process."""
        return tuple(
            EngineProcess(
                replica=r.replica,
                state=r.state,  # type: ignore[arg-type]  # one of ours
                serial=r.serial,
                pid=r.pid,
                started_at=r.started_at,
                port=r.port,
                gpus=r.gpus,
                detail=r.detail,
                log_tail=r.log_tail,
            )
            for r in list(self._records.values())
        )

    # -- actions -------------------------------------------------------------------------------

    def _obey(self, action: Action, now: float) -> ActionReceipt:
        known = self._records.get(action.do.replica)
        if known is not None and action.serial == known.serial:
            return ActionReceipt(outcome="already_there")
        if known is not None and action.serial < known.serial:
            return ActionReceipt(
                outcome="refused_older",
                detail=f"action {known.serial} for {known.replica} was obeyed already",
            )
        if now >= action.expires_at:
            return ActionReceipt(outcome="expired", detail="it came too late: send it anew")
        if isinstance(action.do, StopEngine):
            return self._stop(action.do, action.serial, known)
        if known is not None and known.is_live:
            known.serial = action.serial
            self._save(known)
            return ActionReceipt(outcome="already_there", detail="its process runs")
        return self._start(action.do, action.serial)

    def _start(self, wanted: StartEngine, serial: int) -> ActionReceipt:
        try:
            command = self.rules.command(wanted)
            self._check_room(wanted)
        except CommandRefused as refusal:
            log.warning("engine_refused", replica=wanted.replica, why=str(refusal))
            return ActionReceipt(outcome="refused", detail=str(refusal))
        before = self._records.get(wanted.replica)
        record = EngineRecord(
            replica=wanted.replica, serial=serial, port=wanted.port, gpus=wanted.gpus
        )
        self._save(record)  # before it runs: whoever comes after us looks for it
        try:
            child = self._spawn(command, record)
        except OSError as error:
            self._put_back(wanted.replica, before)
            return ActionReceipt(outcome="refused", detail=f"{command.argv[0]}: {error.strerror}")
        self._children[record.replica] = child
        record.pid, record.started_at = child.pid, self.clock()
        record.mark = marks.start_mark(child.pid)
        self._save(record)
        log.info("engine_started", replica=record.replica, pid=child.pid, command=command.shown)
        return ActionReceipt(outcome="accepted")

    def _check_room(self, wanted: StartEngine) -> None:
        for record in self._records.values():
            shared = sorted(set(record.gpus) & set(wanted.gpus))
            if record.is_live and record.replica != wanted.replica and shared:
                raise CommandRefused(f"GPU {shared[0]} is held by the engine of {record.replica}.")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.rules.host, wanted.port))
            except OSError as error:
                raise CommandRefused(f"Port {wanted.port}: {error.strerror}.") from None

    def _spawn(self, command: StartCommand, record: EngineRecord) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}
        environment |= command.environment
        environment[marks.MARK] = self._mark(record.replica)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, record.gpus))
        path = self._log(record.replica)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            return subprocess.Popen(  # noqa: S603 - words of our own making, no shell
                command.argv,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self, wanted: StopEngine, serial: int, known: EngineRecord | None) -> ActionReceipt:
        record = known or EngineRecord(
            replica=wanted.replica, serial=serial, state="stopped", ended_at=self.clock()
        )
        record.serial = serial
        if record.state == "running":
            record.state, record.kill_at = "stopping", self.clock() + wanted.patience_s
            self._save(record)
            marks.tell(record.pid, signal.SIGTERM, group=False)
            log.info("engine_stopping", replica=record.replica, patience_s=wanted.patience_s)
        else:
            self._save(record)
        return ActionReceipt(outcome="accepted")

    # -- looking after them --------------------------------------------------------------------

    def look(self) -> None:
        """Note which processes have ended, and end those whose patience is over."""
        now = self.clock()
        for record in list(self._records.values()):
            if record.is_live:
                self._look_at(record, now)
            elif now - record.ended_at > ENDED_KEPT_S:
                self._forget(record.replica)

    def _look_at(self, record: EngineRecord, now: float) -> None:
        child = self._children.get(record.replica)
        status = child.poll() if child is not None else None  # takes a zombie away
        if record.mark and marks.start_mark(record.pid) == record.mark:
            if record.state == "stopping" and now >= record.kill_at:
                log.warning("engine_killed", replica=record.replica, pid=record.pid)
                marks.tell(record.pid, signal.SIGKILL, group=True)
            self._bound_log(record.replica)
            return
        if child is not None and status is None:
            status = child.poll()  # it ended since we asked
        for left_behind in marks.marked_pids(self._mark(record.replica)):
            marks.tell(left_behind, signal.SIGKILL, group=False)  # they may hold its GPUs
        self._ended(record, status, now)

    def _ended(self, record: EngineRecord, status: int | None, now: float) -> None:
        self._children.pop(record.replica, None)
        record.ended_at = now
        if record.state == "stopping":
            record.state = "stopped"
        else:
            record.state = "failed"
            record.detail = _how_it_ended(status, now, record.started_at)
            record.log_tail = self._tail(record.replica)
            log.warning("engine_failed", replica=record.replica, why=record.detail)
        self._save(record)

    def _find_again(self, record: EngineRecord) -> None:
        """Look for a process that started as this agent died: its record has no pid yet."""
        record.pid = marks.marked_pid(self._mark(record.replica))
        record.mark = marks.start_mark(record.pid) if record.pid else ""
        self._save(record)

    # -- files ---------------------------------------------------------------------------------

    def _mark(self, replica: str) -> str:
        """Tell our engines from those of another agent on this machine."""
        folder = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]
        return f"{folder}:{replica}"

    def _log(self, replica: str) -> Path:
        return self.folder / f"{replica}.log"

    def _record_file(self, replica: str) -> Path:
        return self.folder / f"{replica}.json"

    def _save(self, record: EngineRecord) -> None:
        self.write(self._record_file(record.replica), msgspec.json.encode(record))
        self._records[record.replica] = record

    def _put_back(self, replica: str, before: EngineRecord | None) -> None:
        if before is not None:
            self._save(before)
        else:
            self._forget(replica)

    def _forget(self, replica: str) -> None:
        self._records.pop(replica, None)
        for path in (self._record_file(replica), self._log(replica), self._older(replica)):
            path.unlink(missing_ok=True)

    def _older(self, replica: str) -> Path:
        return self.folder / f"{replica}.log.older"

    def _bound_log(self, replica: str) -> None:
        """Move a log that has grown large aside; its engine goes on writing at the beginning."""
        path = self._log(replica)
        try:
            if path.stat().st_size > LOG_LIMIT_BYTES:
                self._older(replica).write_bytes(path.read_bytes()[-LOG_LIMIT_BYTES:])
                os.truncate(path, 0)
        except OSError as error:
            log.warning("engine_log_not_bounded", replica=replica, why=str(error))

    def _tail(self, replica: str) -> str:
        try:
            with self._log(replica).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 2 * TAIL_CHARACTERS))
                text = file.read().decode("utf-8", "replace")
        except OSError as error:
            return f"Its log cannot be read: {error.strerror}."
        shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
        return without_keys(shown).strip()[-TAIL_CHARACTERS:]


def without_keys(text: str) -> str:
    """Take keys out of what an engine wrote: some write all their options when they start."""
    return _KEY.sub(r"\1***", text)


def _how_it_ended(status: int | None, now: float, started_at: float | None) -> str:
    after = "" if started_at is None else f" after {max(now - started_at, 0.0):.0f} s"
    if status is None:
        return f"its process is gone{after}; nobody saw how it ended"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}{after}"
    return f"its process ended with status {status}{after}"
