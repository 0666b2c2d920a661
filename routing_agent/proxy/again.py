"""What follows a failed attempt: another one, the rest of a broken stream, a wait, or the end."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

import structlog

from routing_agent.core.choose import FULL, exclusion
from routing_agent.core.continuation import can_continue, judge_continuation
from routing_agent.core.fleet import PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.retries import (
    COUNTS_AGAINST_REPLICA,
    judge_hung,
    judge_retry,
    refused_for_s,
)
from routing_agent.core.waiting import WaitingLine, Wants, line_limit
from routing_agent.proxy import admission, continuation, life, outcome, which_model
from routing_agent.proxy.answer import Failed, StreamAnswer
from routing_agent.proxy.attempt import Attempt, Verdict
from routing_agent.proxy.held import HeldRequest

if TYPE_CHECKING:
    pass

log = structlog.get_logger(__name__)


class RetriedRequest(HeldRequest):
    """A request that is sent again where that is allowed and makes sense."""

    def _dispatch(self, now: float) -> None:
        raise NotImplementedError

    def _queue(self, pool: PoolState, now: float) -> None:
        raise NotImplementedError

    def _fall_back(self, pool: PoolState) -> bool:
        raise NotImplementedError

    def attempt_failed(self, failed: Failed) -> None:
        """Try again if that is allowed and makes sense, else tell the client."""
        attempt, pool = self.attempt, self._pool
        if attempt is None or pool is None:
            return
        now = monotonic()
        self.tries = (*self.tries, life.failed_try(self, attempt, failed, now))
        verdict: Verdict = "bad" if COUNTS_AGAINST_REPLICA[failed.failure] else "none"
        has_begun = self.has_begun
        if attempt.has_begun and isinstance(attempt.answer, StreamAnswer):
            attempt.answer.release()
        attempt.stop(verdict, now)
        log.info(
            "attempt_failed",
            request_id=self.request_id.decode(),
            pool=pool.pool.name,
            replica=attempt.replica.id,
            failure=failed.failure,
            detail=failed.detail,
        )
        if failed.failure == "unsure":
            self._ask_large(failed, now)
        elif has_begun and not self._may_continue(attempt, pool, now):
            self._break(outcome.final_error(failed, attempt.replica), failed)
        elif self._retry(failed, pool, now) or self._wait_for_room(failed, pool, now):
            return
        elif not self._wait_for_adapter(failed, now):
            self._give_up(failed)

    def _ask_large(self, failed: Failed, now: float) -> None:
        """Keep the small model's answer for want of a better one, and ask the large model."""
        destination, table = self.destination, self.proxy.fleet.table
        assert destination is not None and table is not None  # noqa: S101, PT018 - it was judged
        lines = b"content-type: %b\r\n" % failed.content_type
        self.second_best = (lines + self.own_headers(), failed.body, destination.model)
        self.cascade_rule = None
        if not which_model.escalate(self.proxy.fleet, table, destination):
            self._answer_second_best(*self.second_best)
            return
        destination.path = "escalated"
        self.wasted_tokens = failed.tokens
        self.tries[-1].next = f"asks '{destination.model.name}' instead"
        self._pool = destination.pool
        self._route_request = RouteRequest(
            destination.charge_tokens,
            destination.session,
            prompt_tokens=destination.prompt_tokens,
        )
        self._know_prefix(destination.pool, now)
        self._dispatch(now)

    def _may_continue(self, attempt: Attempt, pool: PoolState, now: float) -> bool:
        """Say whether another replica may write on where this one broke off; the rest is judged
        as any retry is."""
        transcript, request, answer = self.transcript, self._route_request, attempt.answer
        is_stream = isinstance(answer, StreamAnswer)
        if transcript is None or request is None or not (is_stream or transcript.is_continuing):
            self.tries[-1].next = "its answer had begun"
            return False
        self.first_token_at = self.first_token_at or attempt.first_token_at
        transcript.broke(answer.reader.usage if isinstance(answer, StreamAnswer) else None)
        fault = continuation.fault_of(self._body, transcript)
        if now >= self._end_at:
            fault = "its time is over"
        if fault:
            self.tries[-1].next = f"not continued: {fault}"
            return False
        transcript.is_continuing = True
        request.tried = tuple({*request.tried, *self._unable(pool)})
        return True

    def _unable(self, pool: PoolState) -> tuple[str, ...]:
        """Give the replicas that could not write on in a text that another began."""
        if self.transcript is None or not self.transcript.is_continuing:
            return ()
        path = self.transcript.path
        return tuple(r.id for r in pool.replicas if not can_continue(r.endpoint.engine, path))

    def _retry(self, failed: Failed, pool: PoolState, now: float) -> bool:
        request = self._route_request
        assert request is not None  # noqa: S101 - set by _admit
        others = self._others(pool, request, now)
        judge = judge_continuation if self.has_begun else judge_retry
        verdict = judge(
            failed.failure,
            attempts=self.attempts - self.refusals,
            others=others,
            settings=pool.settings,
            budget=pool.budget,
            clock_and_chance=(now, self.proxy.chance),
        )
        self.tries[-1].next = verdict.reason
        if not verdict.retry:
            return False
        self._failed = failed
        if verdict.same_replica:
            request.tried = self._unable(pool)
        self.proxy.metrics.retried(pool.pool)
        self.proxy.room_made(pool)
        self._enter("pausing", now)
        self._pause = self.proxy.loop.call_later(verdict.delay_s, self._pause_over)
        return True

    def _wait_for_room(self, failed: Failed, pool: PoolState, now: float) -> bool:
        """Treat a full engine as a full pool: wait in its queue, or fall back; true if so."""
        request = self._route_request
        if failed.failure != "overloaded" or request is None or self.has_begun:
            return False
        if pool.pool.overload == "fallback" and self._fall_back(pool):
            request.tried = ()
            self.tries[-1].next = "the pool falls back"
            self._dispatch(now)
            return True
        return pool.pool.overload == "queue" and self._hold_place(failed, pool, now)

    def _wait_for_adapter(self, failed: Failed, now: float) -> bool:
        """Wait until an adapter that its last holder lost is there again; once, true if so."""
        request = self._route_request
        if failed.failure != "not_resident" or request is None or self.has_begun or self.refusals:
            return False
        self.refusals += 1
        self._failed, request.tried = failed, ()
        self.tries[-1].next = "waits until the adapter is loaded again"
        self._dispatch(now)
        return True

    def _hold_place(self, failed: Failed, pool: PoolState, now: float) -> bool:
        """Wait in the queue for as long as the engine asks; false if that would be in vain."""
        line, settings = self.proxy.line(pool.pool.name), pool.settings
        pause_s = refused_for_s(failed.retry_after)
        queued_at = now if self.queued_at is None else self.queued_at
        limit = line_limit(per_replica=settings.queue_limit_per_replica, healthy=pool.usable(now))
        if now + pause_s >= min(queued_at + settings.queue_deadline_s, self._end_at):
            self.tries[-1].next = f"it asks for {pause_s:.0f} s: more than may be waited"
            return False
        if self.queued_at is None and len(line) >= limit:
            self.tries[-1].next = f"the pool's queue of {limit} is full"
            return False
        if self.queued_at is not None:
            line.pace.was_refused()
        self.tries[-1].next = f"waits in the queue, {pause_s:.0f} s at least"
        assert self._route_request is not None  # noqa: S101 - set by _admit
        self._route_request.tried = ()
        self._failed, self.queued_at = failed, queued_at
        self.refusals += 1
        self._ticket = line.hold(self)
        self.is_queued = True
        self._enter("queued", queued_at)
        self._pause = self.proxy.loop.call_later(pause_s, self._hold_over, pool)
        return True

    def _hold_over(self, pool: PoolState) -> None:
        self._pause = None
        self._queue(pool, monotonic())
        self.proxy.room_made(pool)

    @staticmethod
    def _others(pool: PoolState, request: RouteRequest, now: float) -> int:
        """Count the untried replicas; a full one counts where its room may be waited for."""
        waits = ("", FULL) if pool.pool.overload == "queue" else ("",)
        return sum(exclusion(request, r, now) in waits for r in pool.replicas)

    def turn_came(self, now: float) -> None:
        """Leave the queue if there is room now; else keep the place."""
        self.is_queued = False
        if self._is_finished:
            return
        self._dispatch(now)

    def _wants(self) -> Wants:
        """Give what decides when this request has its turn in a queue."""
        caller, destination = self.caller.tenant, self.destination
        assert destination is not None  # noqa: S101 - set by _accept
        prompt = destination.prompt_tokens
        return Wants(
            admission.priority(caller, self.incoming.headers),
            self.incoming.received_at,
            caller.name,
            prompt,
            destination.charge_tokens - prompt,
        )

    def keep_place(self, line: WaitingLine[RetriedRequest]) -> None:
        """Go on waiting in a queue whose turn for it has passed."""
        if self._ticket is not None and not self._is_finished:
            line.ready(self, self._wants(), ticket=self._ticket, returns=True)

    def _pause_over(self) -> None:
        self._pause = None
        self._dispatch(monotonic())

    def leave_hung_engine(self, now: float) -> None:
        """Go on elsewhere, if nothing of an answer has come and another replica may serve it."""
        attempt, pool, request = self.attempt, self._pool, self._route_request
        assert attempt is not None and pool is not None and request is not None  # noqa: S101, PT018
        if attempt.connection is None or self.has_begun:
            return
        replica = attempt.replica
        may_retry = self.attempts <= pool.settings.max_retries
        verdict = judge_hung(
            now - attempt.started_at,
            tells_progress=replica.scraped_at is not None,
            others=self._others(pool, request, now) if may_retry else 0,
            settings=pool.settings,
            budget=pool.budget,
            now=now,
        )
        if verdict.failure is not None:
            self.attempt_failed(Failed(verdict.failure, f"{replica.blocked}; {verdict.reason}"))
