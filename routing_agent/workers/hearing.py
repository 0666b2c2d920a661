"""What workers tell, and what becomes of it in the supervisor and in the other workers."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from routing_agent.metrics import Metrics
from routing_agent.wire import RequestRecord, ShadowPair
from routing_agent.workers import messages as say
from routing_agent.workers.absorbing import Sums
from routing_agent.workers.asking import Questions
from routing_agent.workers.crew import Crew
from routing_agent.workers.fleet import SharedFleet
from routing_agent.workers.gate import SharedGate
from routing_agent.workers.process import WorkerProcess
from routing_agent.workers.replica import SharedReplica

log = structlog.get_logger()


class Hearing:
    """Takes what workers tell; `crew` is who is told in turn."""

    crew: Crew

    def __init__(self, fleet: SharedFleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self.sums = Sums(fleet, metrics)
        self.questions = Questions()
        self.on_record: Callable[[RequestRecord], None] | None = None
        self.on_pair: Callable[[ShadowPair], None] | None = None
        self.wait_for_lease: Callable[[str, int, Callable[[], None]], None] | None = None
        self.is_listening = False  # whoever is ready may serve

    def take(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        """Take a message."""
        match message:
            case say.Finished():
                self.sums.finished(message)
            case say.Counted():
                self.sums.counted(message)
            case say.AtReplicas():
                self.sums.at_replicas(worker.number, message)
            case say.Kept() if self.on_record is not None:
                self.on_record(message.record)
            case say.Paired() if self.on_pair is not None:
                self.on_pair(message.pair)
            case say.LeaseWanted():
                self._lease(worker, message)
            case say.Charged():
                self._charged(worker, message)
            case _:
                self._take_rare(worker, message)

    def _take_rare(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        match message:
            case say.Judged():
                self._judged(worker, message)
            case say.Doubted():
                self._doubted(message)
            case say.AdapterLost():
                self._lost(message)
            case say.RoomMade():
                self.crew.workers[message.worker].send(message)
            case say.Answer():
                self.questions.answered(message)
            case _:
                self._lives(worker, message)

    def _lives(self, worker: WorkerProcess, message: say.ToSupervisor) -> None:
        match message:
            case say.Applied():
                worker.applied = message.serial
            case say.Ready():
                worker.is_ready = True
                if self.is_listening:
                    worker.send(say.Serve())
            case say.Serving():
                worker.serves = True
                log.info("worker_serves", worker=worker.number, pid=worker.pid)
            case say.Drained():
                worker.drained = message.cut
        self.crew.changed.set()

    def _lease(self, worker: WorkerProcess, wanted: say.LeaseWanted) -> None:
        def over() -> None:
            gate = self._fleet.gates.get(wanted.tenant)
            is_kept = (
                isinstance(gate, SharedGate)
                and not worker.is_gone
                and gate.keep(wanted.tokens, time.monotonic(), worker.number)
            )
            worker.send(say.LeaseOver(wanted.ticket, wanted.tenant, wanted.tokens, is_kept))

        if self.wait_for_lease is None:
            over()
        else:
            self.wait_for_lease(wanted.tenant, wanted.tokens, over)

    def _judged(self, worker: WorkerProcess, judged: say.Judged) -> None:
        self.crew.tell(judged, but=worker)
        replica = self._fleet.replicas.get(judged.replica)
        if isinstance(replica, SharedReplica):
            replica.sibling_judged(judged.verdict, judged.at, (judged.trial, judged.may_open))

    def _lost(self, lost: say.AdapterLost) -> None:
        replica = self._fleet.replicas.get(lost.replica)
        if replica is not None:
            replica.adapters.note_lost(lost.adapter, time.monotonic())

    def _charged(self, worker: WorkerProcess, charged: say.Charged) -> None:
        self.crew.tell(charged, but=worker)
        pool = self._fleet.pools.get(charged.pool)
        if pool is not None:
            pool.shares.charged_elsewhere(charged.tenant, charged.amount)

    def _doubted(self, doubted: say.Doubted) -> None:
        replica = self._fleet.replicas.get(doubted.replica)
        if replica is not None:
            replica.note_doubt("answers", doubted.reason)
