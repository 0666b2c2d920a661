"""What is to be done about the engine process of a replica that an agent runs. Pure.

Wanted is read from the replica's state, observed from its agent's newest report. Actions are
numbered by how often a start was asked for: start n is 2n, the stop after it 2n + 1. So the same
want always has the same number, and sending it again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from controlplane.domain.replica_states import Event, State
from routing_agent.wire import EngineProcess

BACKOFF_S = 5.0  # doubles with every failure in a row
LONGEST_BACKOFF_S = 300.0
UNKNOWN_ENDS_AFTER_S = 600.0  # as long as a drain may take unless a pool says otherwise
FAILURES_AT_MOST = 6  # in a row; then it is given up, and scaling may try another place

_RUNS = frozenset({
    State.LOADING, State.WARMING, State.READY, State.EJECTED, State.DRAINING, State.SLEEPING,
    State.WAKING,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A replica as the database knows it."""

    state: State
    state_since: datetime
    starts: int = 0
    failures: int = 0
    state_reason: str = ""
    loading_since: datetime | None = None
    loading_limit_s: float = 900.0
    is_spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do: an action for the agent, or a move of the replica."""

    action: Literal["start", "stop"] | None = None
    event: Event | None = None
    reason: str = ""


def start_serial(starts: int) -> int:
    """Give the number of the start action."""
    return 2 * starts


def stop_serial(starts: int, obeyed: int = 0) -> int:
    """Give the number of the stop action that ends that start.

    Args:
        obeyed: number of the newest action its agent obeyed. A database that was restored from a
            backup may be behind it, and an older number is refused.
    """
    return 2 * max(starts, obeyed // 2) + 1


def may_end_unknown(engine: EngineProcess, *, in_charge_since: datetime, now: datetime) -> bool:
    """Say whether an engine may be ended whose replica this database does not know.

    One that was started since we are in charge of its agent was deleted here. One from before, by
    another database or by this one before its backup, may still serve: its requests get the time
    that a drain has. Nobody can use it afterwards, for the key it was started with is lost.

    Args:
        in_charge_since: when its agent registered here, or a restored database was adopted if that
            was later.
    """
    begun = engine.started_at
    if begun is not None and begun > in_charge_since.timestamp():
        return True
    return now - in_charge_since >= timedelta(seconds=UNKNOWN_ENDS_AFTER_S)


def next_step(run: RunView, engine: EngineProcess | None, *, now: datetime) -> Step | None:
    """Say what to do next; None: nothing. `engine` is None where no fresh report tells of it."""
    if run.state is State.PENDING:
        return Step(event=Event.START, reason="its engine is asked for")
    if run.state is State.FAILED:
        return _failed(run, engine, now)
    if run.state is State.STOPPED:
        return _stop(engine, "it is not wanted any more")
    return _running(run, engine, now) if run.state in _RUNS else None


def _running(run: RunView, engine: EngineProcess | None, now: datetime) -> Step | None:
    ours = engine if engine is not None and engine.serial >= start_serial(run.starts) else None
    if ours is not None and ours.state in ("failed", "stopped"):
        return Step(event=Event.GONE, reason=how_it_ended(ours))
    if _is_late(run, now):
        waited = f"{run.loading_limit_s:g} s"
        return Step(event=Event.DEADLINE, reason=f"not ready within {waited} of its start")
    if run.state is State.LOADING and ours is None:
        return Step(action="start", reason=run.state_reason)
    return None


def _is_late(run: RunView, now: datetime) -> bool:
    if run.state not in (State.LOADING, State.WARMING) or run.loading_since is None:
        return False
    if run.is_spare and run.state is State.WARMING:
        return False
    return now - run.loading_since > timedelta(seconds=run.loading_limit_s)


def _failed(run: RunView, engine: EngineProcess | None, now: datetime) -> Step | None:
    stop = _stop(engine, "its replica has failed")
    if stop is not None:
        return stop
    if engine is not None and engine.state == "stopping":
        return None
    if run.failures >= FAILURES_AT_MOST:
        reason = f"given up after {run.failures} failures in a row; the last: {run.state_reason}"
        return Step(event=Event.GIVE_UP, reason=reason)
    wait_s = backoff_s(run.failures)
    if now - run.state_since < timedelta(seconds=wait_s):
        return None
    reason = f"restarted {wait_s:g} s after failure {run.failures} in a row"
    return Step(event=Event.START, reason=reason)


def _stop(engine: EngineProcess | None, reason: str) -> Step | None:
    is_running = engine is not None and engine.state == "running"
    return Step(action="stop", reason=reason) if is_running else None


def backoff_s(failures: int) -> float:
    """Give how long a failed replica rests before it is started again."""
    return float(min(BACKOFF_S * 2 ** max(failures - 1, 0), LONGEST_BACKOFF_S))


def how_it_ended(engine: EngineProcess) -> str:
    """Say how a process ended, with the last line of its log."""
    said = engine.detail or "its engine was stopped"
    lines = engine.log_tail.strip().splitlines()
    return f"{said}; its log ends: {lines[-1][-160:]}" if lines else said
