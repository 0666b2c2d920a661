"""Brings engine processes to what replicas want: sends actions, follows what agents report.

Level by level: what is wanted is read from the database, what is from the newest reports. An action
that was lost, or whose answer was, is sent again under its number.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog
from django.db.models import Q

from controlplane.audit.services import Actor
from controlplane.domain.amounts import counted
from controlplane.domain.engine_runs import (
    RunView,
    Step,
    may_end_unknown,
    next_step,
    start_serial,
    stop_serial,
)
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.replica_states import Event, State
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Replica, ReplicaMove
from controlplane.routing import selectors as routing
from controlplane.routing.models import Publication
from controlplane.routing.push import AgentUnreachable, call_agent
from controlplane.scaling import selectors
from controlplane.scaling.models import ColdStart
from routing_agent import wire

log = structlog.get_logger(__name__)
LOOP: Final = Actor("executor", "loop")
PATH: Final = "/agent/v1/actions"
EXPIRES_S: Final = 30.0
STOP_PATIENCE_S: Final = 20.0  # it was drained before: nothing of ours runs in it
FORGOTTEN_S: Final = 24 * 3600.0  # a stopped replica's engine is not looked for any more


def execute_all(now: datetime) -> str:
    """Take the next step of every engine that agents run, and say what was done."""
    current = routing.publication()
    if current.halted_reason:  # what we know is older than what runs: end nothing by it
        return f"halted: {current.halted_reason}"
    said = selectors.heard()
    engines = {e.replica: e for report, _ in said.reports.values() for e in report.engines}
    known = Replica.objects.filter(executor=Replica.Executor.AGENT)
    recent = Q(state=State.STOPPED, state_since__lt=_ago(now, FORGOTTEN_S))
    rows = list(known.exclude(recent).select_related("node__agent", "pool__model_version__model"))
    post = Post()
    steps = sum(_take(row, engines.get(row.public_id), post, now) for row in rows)
    stopped = _stop_orphans(said, current, post, now)
    _measure(rows)
    return f"{counted(len(rows), 'engines')} looked at, {counted(steps + stopped, 'steps')}"


def _ago(now: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - seconds, now.tzinfo)


@dataclass
class Post:
    """Sends actions; who did not answer once is left alone for the rest of this run."""

    silent: set[int] = field(default_factory=set)

    def send(
        self, agent: Agent, do: wire.StartEngine | wire.StopEngine, serial: int
    ) -> wire.ActionReceipt | None:
        """Send one action; None if there was no answer: it is sent again next time."""
        if agent.pk in self.silent:
            return None
        action = wire.Action(
            id=f"{do.replica}-{serial}", serial=serial, expires_at=time.time() + EXPIRES_S, do=do
        )
        body = msgspec.json.encode(action)
        try:
            answer = call_agent(agent.admin_url, method="POST", path=PATH, body=body)
            receipt = msgspec.json.decode(answer.body, type=wire.ActionReceipt)
        except (AgentUnreachable, msgspec.MsgspecError) as error:
            self.silent.add(agent.pk)
            log.warning("action_not_sent", action=action.id, agent=agent.public_id, why=str(error))
            return None
        log.info("action_sent", action=action.id, outcome=receipt.outcome, detail=receipt.detail)
        return receipt


def _take(row: Replica, engine: wire.EngineProcess | None, post: Post, now: datetime) -> bool:
    """Take what can be taken of a replica's way now: asked for and sent is one go."""
    is_taken = False
    while (step := next_step(_view(row), engine, now=now)) is not None:
        is_taken = True
        if not _take_one(row, engine, step, post) or row.state != State.LOADING or step.action:
            break
    return is_taken


def _take_one(row: Replica, engine: wire.EngineProcess | None, step: Step, post: Post) -> bool:
    """Take one step; false if somebody else was quicker, or the agent took no action."""
    if step.event is not None:
        return _move(row, step.event, step.reason)
    agent = getattr(row.node, "agent", None)
    if agent is None:
        return row.state == State.LOADING and _move(row, Event.GONE, "its node has no agent")
    if step.action == "start":
        return _start(row, agent, post)
    obeyed = engine.serial if engine is not None else 0
    return post.send(agent, _stop(row.public_id), stop_serial(row.starts, obeyed)) is not None


def _view(row: Replica) -> RunView:
    return RunView(
        state=State(row.state),
        state_since=row.state_since,
        starts=row.starts,
        failures=row.failures,
        state_reason=row.state_reason,
        loading_since=_loading_since(row),
        loading_limit_s=float(row.launch.get("loading_limit_s", 900.0)),
        is_spare=row.is_spare,
    )


def _loading_since(row: Replica) -> datetime | None:
    if row.state == State.LOADING:
        return row.state_since
    if row.state != State.WARMING:
        return None
    moves = ReplicaMove.objects.filter(replica=row, to_state=State.LOADING)
    return moves.values_list("at", flat=True).first()


def _move(row: Replica, event: Event, reason: str) -> bool:
    try:
        moved = fleet.move_replica(
            replica_id=row.public_id, event=event, actor=LOOP, reason=reason,
            expected_version=row.version,
        )  # fmt: skip
    except (Conflict, NotFound) as error:  # the other worker, or a person
        log.info("replica_moved_meanwhile", replica=row.public_id, why=error.message)
        return False
    row.refresh_from_db(fields=["state", "state_since", "state_reason", "starts", "failures",
                                "version"])  # fmt: skip
    log.info("replica_moved", replica=row.public_id, on=event, to=moved.state, reason=reason)
    return True


def _start(row: Replica, agent: Agent, post: Post) -> bool:
    """Ask for an engine; what its agent refuses for good fails the replica, in its words."""
    launch: dict[str, Any] = {k: v for k, v in row.launch.items() if k != "loading_limit_s"}
    try:
        start = msgspec.convert(
            {
                "replica": row.public_id,
                "served_name": row.served_model,
                "port": int(row.url.rsplit(":", 1)[1]),
                "gpus": row.gpu_indices,
                "api_key": row.credential,
                **launch,
            },
            wire.StartEngine,
        )
    except (msgspec.ValidationError, ValueError) as error:
        return _move(row, Event.GONE, f"it cannot be started: {error}")
    receipt = post.send(agent, start, start_serial(row.starts))
    if receipt is not None and receipt.outcome == "refused":
        return _move(row, Event.GONE, f"its agent refused: {receipt.detail}")
    return receipt is not None


def _stop(replica: str) -> wire.StopEngine:
    return wire.StopEngine(replica=replica, patience_s=STOP_PATIENCE_S)


def _stop_orphans(said: selectors.Heard, current: Publication, post: Post, now: datetime) -> int:
    """Stop engines whose replicas nobody knows any more: they were deleted while they ran.

    An agent that runs a newer table than ours knows more than this database: it was restored from
    a backup that is older than those engines, and they carry traffic.
    """
    running = {
        e.replica: (agent, e)
        for agent, (report, _) in said.reports.items()
        if report.lineage in ("", current.lineage) and report.epoch <= current.epoch
        for e in report.engines
        if e.state == "running"
    }
    known = Replica.objects.filter(public_id__in=running).values_list("public_id", flat=True)
    stopped = 0
    for replica in sorted(set(running) - set(known)):
        public_id, engine = running[replica]
        agent = Agent.objects.filter(public_id=public_id).first()
        if agent is None or not may_end_unknown(
            engine, in_charge_since=_in_charge_since(agent), now=now
        ):
            continue
        post.send(agent, _stop(replica), engine.serial + 1)
        stopped += 1
    return stopped


def _in_charge_since(agent: Agent) -> datetime:
    adopted = routing.adopted_at()
    return max(agent.registered_at, adopted) if adopted else agent.registered_at


def _measure(rows: list[Replica]) -> None:
    """Keep how long each start took that has come to its end."""
    ready = [r for r in rows if r.state == State.READY and r.ready_at and not r.is_spare]
    known = set(
        ColdStart.objects.filter(replica__in=[r.public_id for r in ready]).values_list(
            "replica", "start"
        )
    )
    for row in ready:
        if (row.public_id, row.starts) in known or row.node is None:
            continue
        began = ReplicaMove.objects.filter(replica=row, to_state=State.LOADING).first()
        warm = ReplicaMove.objects.filter(replica=row, to_state=State.WARMING).first()
        ended = row.ready_at
        if began is None or warm is None or ended is None or warm.at < began.at:
            continue
        if "promoted" in row.state_reason:
            ended = warm.at  # a promoted spare was warm long before it was wanted
        ColdStart.objects.get_or_create(
            replica=row.public_id,
            start=row.starts,
            defaults={
                "model_version": row.pool.model_version,
                "node": row.node,
                "program": row.launch.get("program", "")[:12],
                "seconds": (ended - began.at).total_seconds(),
                "at": ended,
            },
        )
