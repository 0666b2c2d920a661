"""`bin/down`: ends everything, in order and with patience, however much of it is dead already."""

from __future__ import annotations

from collections.abc import Iterable

from stack import credentials, processes, supervise
from stack.layout import Places, places
from stack.processes import ProcessRecord
from stack.report import ProblemError, say, step
from stack.services import AGENT_DRAIN_S
from stack.supervise import Supervisor

# The supervisor stops services one after another; each is bounded by its own patience.
SHUT_DOWN_LIMIT_S = 90.0
ORPHANS_PATIENCE_S = AGENT_DRAIN_S + 5.0
ANSWER_LIMIT_S = 10.0
HOLD_LIMIT_S = AGENT_DRAIN_S + 10.0


def run(name: str | None) -> int:
    """Stop all, or hold one service down."""
    here = places()
    if name:
        hold(here, name)
        return 0
    if not here.run.exists():
        say("Nothing runs here.")
        return 0
    stop_all(here)
    return 0


def hold(here: Places, name: str) -> None:
    """Stop one service and keep it down until `bin/up NAME`."""
    supervisor = require_running(here, name)
    with step(f"stop {name}") as under_way:
        supervisor.stop(name)
        limit_s = HOLD_LIMIT_S
        if not processes.wait_until(lambda: _is_stopped(supervisor, name), limit_s=limit_s):
            raise ProblemError(
                f"{name} did not stop within {limit_s:.0f} s.", "bin/down stops all."
            )
        under_way.outcome = "held down"
    say(f"{name} stays down until: bin/up {name}")


def require_running(here: Places, name: str) -> Supervisor:
    """Give the supervisor, if it runs and knows this service."""
    supervisor = Supervisor(here)
    if not supervisor.answers():
        raise ProblemError("Signalbox does not run.", "start it first: bin/up --detach")
    known = supervisor.processes()
    if name not in known:
        raise ProblemError(
            f"there is no service named {name!r}.", f"the services are: {', '.join(sorted(known))}"
        )
    return supervisor


def _is_stopped(supervisor: Supervisor, name: str) -> bool:
    state = supervisor.processes()[name]["statename"]
    return state in {"STOPPED", "EXITED", "FATAL"}


def stop_all(here: Places, *, quiet: bool = False) -> None:
    """Stop every process of this stack and leave nothing behind that says it runs."""
    stack_id = credentials.stack_id(here)
    found = processes.living(here.run, stack_id)
    if found:
        with step("stop services") as under_way:
            _stop(here, stack_id)
            under_way.outcome = f"{_services_among(found)} stopped"
    left = processes.living(here.run, stack_id)
    if left:
        shown = ", ".join(f"{r.name} (pid {r.pid})" for r in left)
        raise ProblemError(f"still running: {shown}.", "end them by pid; their logs may say why.")
    clear(here)
    if not found and not quiet:
        say("Nothing runs here.")


def kill_all(here: Places) -> None:
    """End every process of this stack at once."""
    stack_id = credentials.stack_id(here)
    for chosen in (_supervisors(here, stack_id), processes.living(here.run, stack_id)):
        processes.end(chosen, patience_s=0.0)
    clear(here)


def _services_among(found: Iterable[ProcessRecord]) -> int:
    return len({r.name for r in found} - {supervise.NAME})


def _stop(here: Places, stack_id: str) -> None:
    """Let the supervisor do it if there is one; then end whatever is left, supervisor or not."""
    supervisor = Supervisor(here, timeout_s=ANSWER_LIMIT_S)
    if supervisor.answers():
        supervisor.shut_down()
        processes.wait_until(lambda: not _supervisors(here, stack_id), limit_s=SHUT_DOWN_LIMIT_S)
    # A supervisor that does not answer would bring back what is ended here: it goes first.
    processes.end(_supervisors(here, stack_id), patience_s=2.0)
    processes.end(processes.living(here.run, stack_id), patience_s=ORPHANS_PATIENCE_S)


def _supervisors(here: Places, stack_id: str) -> list[ProcessRecord]:
    return [r for r in processes.living(here.run, stack_id) if r.name == supervise.NAME]


def clear(here: Places) -> None:
    """Remove what describes running processes."""
    processes.forget_records(here.run)
    here.supervisor_socket.unlink(missing_ok=True)
    for pattern in ("supervisor.pid", "*.alive", "*.received"):
        for path in here.run.glob(pattern):
            path.unlink(missing_ok=True)
