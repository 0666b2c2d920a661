"""The life of one request: received, queued, bound, relayed, done or failed.

What an attempt holds is given back by `Attempt.stop`, what the whole request holds (its place in a
queue, its tenant's share) by `_finish`. Every way out ends there, and both are safe to call twice.
"""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from routing_agent.core.choose import FULL, Choice, RouteRequest, choose, exclusion
from routing_agent.core.continuation import CONTINUED_PATHS, can_continue, judge_continuation
from routing_agent.core.deadlines import (
    OTHERS_PACE,
    Limit,
    Phase,
    first_byte_limit_s,
    next_deadline,
)
from routing_agent.core.explain import candidates_of
from routing_agent.core.fleet import PoolState
from routing_agent.core.replica import Replica
from routing_agent.core.retries import (
    COUNTS_AGAINST_REPLICA,
    judge_hung,
    judge_retry,
    refused_for_s,
)
from routing_agent.core.sampling import FAILED_FROM, is_in_share
from routing_agent.core.stages import Try
from routing_agent.core.table import KeyOwner
from routing_agent.core.waiting import line_limit
from routing_agent.metrics import FinishedRequest
from routing_agent.proxy import admission, continuation, ids, life, outcome, tracing
from routing_agent.proxy.answer import Failed, StreamAnswer
from routing_agent.proxy.attempt import Attempt, Verdict
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.request import USAGE_ON_REQUEST, ParsedRequest, RequestRefused, parse
from routing_agent.proxy.splice import rewrite
from routing_agent.proxy.transcript import Transcript

if TYPE_CHECKING:
    from routing_agent import wire
    from routing_agent.proxy.ingress import ClientConnection, Incoming
    from routing_agent.proxy.server import Proxy

log = structlog.get_logger(__name__)

# How long a client may take no bytes before we give it up.
CLIENT_STALL_S: Final = 60.0
CLIENT_LEFT: Final = 499
NEVER: Final = float("inf")
_GENERATES: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)


class Exchange:
    """One request on its way."""

    # Defaults on the class keep the making of an exchange cheap.
    request: ParsedRequest | None = None
    destination: admission.Destination | None = None
    choice: Choice | None = None
    attempt: Attempt | None = None
    attempts = 0
    strip_usage = False
    transcript: Transcript | None = None  # kept where a broken stream is to be continued
    first_token_at: float | None = None  # by an engine before the one that writes now
    queue_wait_s = 0.0
    # For the record of a request that is kept.
    came_with: tracing.Caller | None = None
    candidates: tuple[wire.Candidate, ...] = ()
    detail = ""  # what the client was told, where the words are our own
    is_sampled = False
    last_choice: Choice | None = None
    tries: tuple[Try, ...] = ()  # attempts that failed
    was_sent = False  # the attempt that we stopped had its connection
    deadline = NEVER
    is_queued = False
    _client_is_full = False
    _end_at = NEVER
    _failed: Failed | None = None  # what the last attempt met
    _fallen_back = False
    _is_finished = False
    _limit: Limit = "end_to_end"
    _pause: asyncio.TimerHandle | None = None
    _pool: PoolState | None = None
    queued_at: float | None = None
    refusals = 0  # attempts that ended because the engine was full
    _route_request: RouteRequest | None = None
    _stall_s = NEVER
    _ticket: int | None = None

    def __init__(self, proxy: Proxy, client: ClientConnection, incoming: Incoming) -> None:
        self.proxy = proxy
        self.client = client
        self.incoming = incoming
        self.own_id = proxy.ids.new()
        given = incoming.headers.get(b"x-request-id")
        self.request_id = given if given is not None and ids.is_sound(given) else self.own_id
        self.caller: KeyOwner = incoming.caller
        self._body = incoming.body
        if b"traceparent" in incoming.headers:
            self.came_with = tracing.caller(incoming.headers)
        if is_in_share(self.request_id, proxy.keep_below):
            self.is_sampled = True
        elif self.came_with is not None:
            self.is_sampled = self.came_with.is_sampled

    # -- in ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Judge the request and send it on its way, or answer with what is wrong with it."""
        now = self.incoming.received_at
        try:
            self._admit(now)
        except RequestRefused as refusal:
            self._answer_error(refusal.answer)
            return
        self._dispatch(now)

    def _admit(self, now: float) -> None:
        fleet = self.proxy.fleet
        table = fleet.table
        if table is None:
            raise RequestRefused(admission.NO_TABLE)
        path = self.incoming.path
        request = self.request = parse(self._body, path)
        session_header = self.incoming.headers.get(b"x-session-id")
        destination = admission.find_destination(fleet, table, self.caller, request, session_header)
        admission.check_pool(destination.pool, path, len(self._body))
        admission.admit(
            fleet.gate(self.caller.tenant, now), self.caller, destination.charge_tokens, now
        )
        self.destination = destination
        self._pool = destination.pool
        self._route_request = RouteRequest(destination.charge_tokens, destination.session)
        self.strip_usage = (
            request.is_stream and not request.wants_usage and path in USAGE_ON_REQUEST
        )
        settings = destination.pool.settings
        self._end_at = now + settings.end_to_end_limit_s
        self._stall_s = settings.stall_limit_s
        if settings.broken_stream == "continue" and request.is_stream and path in CONTINUED_PATHS:
            self.transcript = Transcript(path)
        destination.pool.budget.earn()

    @property
    def generates(self) -> bool:
        """Whether the engine writes tokens for this call."""
        return self.incoming.path in _GENERATES

    @property
    def pool(self) -> PoolState | None:
        """The pool that serves this request, if one was found."""
        return self._pool

    @property
    def bound_to(self) -> Replica | None:
        """The replica that works on this request."""
        return None if self.attempt is None else self.attempt.replica

    # -- choosing ------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        pool, request = self._pool, self._route_request
        assert pool is not None and request is not None  # noqa: S101, PT018 - set by _admit
        began = perf_counter()
        choice = choose(request, pool, now=now, chance=self.proxy.chance)
        metrics = self.proxy.metrics
        metrics.decisions += 1
        metrics.decision_sum_s += perf_counter() - began
        self.last_choice = choice
        if self.is_sampled or self.attempts or choice.replica is None:
            self.candidates = candidates_of(request, pool, choice.replica, now=now)
        if choice.replica is not None:
            if self._fallen_back:
                choice.route = "fallback"
            self._bind(choice, now)
        elif pool.pool.overload == "fallback" and not self.has_begun and self._fall_back(pool):
            self._dispatch(now)
        elif self._failed is not None and not (choice.is_full and pool.pool.overload == "queue"):
            self._give_up(self._failed)
        elif not choice.is_full:
            message = f"No replica of pool '{pool.pool.name}' can take this request: "
            self._answer_error(
                ErrorAnswer("no_replica", message + choice.reason + ".", retry_after_s=5.0)
            )
        elif pool.pool.overload == "queue":
            self._queue(pool, now)
        else:
            self._shed(pool, "overloaded", "all replicas are at their concurrency ceiling")

    def _fall_back(self, pool: PoolState) -> bool:
        fallback = self.proxy.fleet.pools.get(pool.pool.fallback_pool)
        if fallback is None or self._fallen_back:
            return False
        self._fallen_back = True
        self._pool = fallback
        self.proxy.metrics.shed(pool.pool, "fallback")
        return True

    def _queue(self, pool: PoolState, now: float) -> None:
        line = self.proxy.line(pool.pool.name)
        priority = admission.priority(self.caller.tenant, self.incoming.headers)
        if self._ticket is not None:
            since = self.incoming.received_at
            line.ready(self, priority=priority, since=since, ticket=self._ticket)
            self.is_queued = True
            return
        limit = line_limit(
            per_replica=pool.settings.queue_limit_per_replica, healthy=pool.usable(now)
        )
        if len(line) >= limit:
            wait_s = line.pace.wait_s(len(line), now)
            self._shed(pool, "queue_full", f"its queue of {limit} is full", wait_s)
            return
        self._ticket = line.join(self, priority=priority, since=self.incoming.received_at)
        self.is_queued = True
        if self.queued_at is None or self.has_begun:
            self.queued_at = now
        self._enter("queued", self.queued_at)

    def _shed(self, pool: PoolState, code: str, what: str, wait_s: float = 1.0) -> None:
        self.proxy.metrics.shed(pool.pool, pool.pool.overload)
        message = f"Pool '{pool.pool.name}' is overloaded: {what}. Try again shortly."
        self._answer_error(ErrorAnswer(code, message, retry_after_s=wait_s, limit="concurrency"))

    def turn_came(self, now: float) -> None:
        """Leave the queue if there is room now; else keep the place."""
        self.is_queued = False
        if self._is_finished:
            return
        self._dispatch(now)

    # -- one attempt ---------------------------------------------------------------------------

    def _bind(self, choice: Choice, now: float) -> None:
        replica, pool, request = choice.replica, self._pool, self._route_request
        assert replica is not None and pool is not None and request is not None  # noqa: S101, PT018
        self.choice = choice
        self.attempts += 1
        if self._ticket is not None:
            self.proxy.line(pool.pool.name).pace.served(now)
            self._ticket = None
            if self.queued_at is not None and not self.has_begun:
                self.queue_wait_s = now - self.queued_at
        request.tried = (*request.tried, replica.id)
        link = self.proxy.link(replica)
        self.attempt = Attempt(self, pool, link, tokens=request.tokens, now=now)
        self.attempt.start(*self._outgoing(pool, link.head()))
        if self.attempt.connection is None and not self._is_finished:
            self._enter("connecting", now)

    def _outgoing(self, pool: PoolState, engine_lines: bytes) -> tuple[bytes, bytes]:
        """Give head and body of the request as the engine is to see it."""
        request, attempt = self.request, self.attempt
        assert request is not None and attempt is not None  # noqa: S101, PT018 - set by callers
        served = attempt.replica.endpoint.served_model or pool.pool.model
        body = self._body
        if self.transcript is not None and self.transcript.is_continuing:
            body = continuation.extended(body, self.transcript, attempt.replica.endpoint.engine)
        if self.strip_usage or served != request.model:
            model = served if served != request.model else None
            body = rewrite(body, model=model, ask_usage=self.strip_usage)
        return outcome.request_head(self, engine_lines, len(body)), body

    def _enter(self, phase: Phase, began: float) -> None:
        """Begin a phase, whose limit is the next deadline."""
        pool = self._pool
        assert pool is not None  # noqa: S101 - set by _admit
        self.deadline, self._limit = next_deadline(
            phase, phase_began=began, end_at=self._end_at, settings=pool.settings
        )

    # -- Owner of the attempt ------------------------------------------------------------------

    def own_headers(self) -> bytes:
        """Give the header lines that we add to an answer."""
        return outcome.own_headers(self)

    def attempt_sent(self) -> None:
        """Wait for the first token."""
        pool, request = self._pool, self.request
        assert pool is not None and request is not None  # noqa: S101, PT018 - set by _admit
        unseen = not request.is_stream and self.generates
        limit_s = first_byte_limit_s(
            pool.settings, generates_unseen=unseen, max_tokens=request.max_tokens
        )
        self._limit = "ttft"
        self.deadline = monotonic() + limit_s
        if self.deadline > self._end_at:
            self.deadline, self._limit = self._end_at, "end_to_end"
        if self._client_is_full:
            self.client_is_full()

    def attempt_moved(self) -> None:
        """Note a sign of life; from the first token on, the next one must come soon."""
        attempt = self.attempt
        if attempt is None:
            return
        now = self.proxy.now
        if attempt.first_token_at is not None:
            attempt.replica.last_token_at = now
        elif self.request is not None and self.request.is_stream:
            return
        if self._limit == "client":
            return
        deadline = now + self._stall_s
        self.deadline = deadline if deadline < self._end_at else self._end_at
        self._limit = "stall" if deadline < self._end_at else "end_to_end"

    def attempt_done(self) -> None:
        """End well."""
        attempt = self.attempt
        if attempt is None or attempt.answer is None:
            return
        now = monotonic()
        attempt.stop("good", now, reuse=True)
        self._finish(attempt.answer.status, "", now)

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
        if has_begun and not self._may_continue(attempt, pool, now):
            self._break(outcome.final_error(failed, attempt.replica), failed)
        elif not self._retry(failed, pool, now) and not self._wait_for_room(failed, pool, now):
            self._give_up(failed)

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

    def _pause_over(self) -> None:
        self._pause = None
        self._dispatch(monotonic())

    # -- limits and ends -----------------------------------------------------------------------

    def forgive(self, lost_s: float) -> None:
        """Put off a limit of somebody else's pace by the time in which we did not look."""
        if self._limit in OTHERS_PACE:
            self.deadline += lost_s
            if self.deadline >= self._end_at and self._limit != "client":
                self.deadline, self._limit = self._end_at, "end_to_end"

    def deadline_passed(self) -> None:
        """End the phase whose limit has passed."""
        if self._limit == "client":
            self.client_left()
        elif self._limit == "queue" or self.attempt is None:
            self._answer_error(self._waited_too_long())
        elif self._limit == "connect" and self.attempt.may_wait_on():
            self._enter("connecting", self.proxy.now)
        elif self._limit == "connect":
            self.attempt_failed(Failed("connect", "no connection within the limit"))
        else:
            self.attempt_failed(Failed("too_slow", outcome.LIMIT_WORDS[self._limit]))

    def _waited_too_long(self) -> ErrorAnswer:
        pool = self._pool
        assert pool is not None  # noqa: S101 - it waited in its queue
        line = self.proxy.line(pool.pool.name)
        return ErrorAnswer(
            "queue_timeout",
            "Waited too long in the queue for a free replica. Try again shortly.",
            retry_after_s=line.pace.wait_s(len(line), monotonic()),
        )

    def client_left(self) -> None:
        """Stop at once: nobody waits for the answer any more."""
        self._stop_attempt()
        self.client.abort()
        self._finish(CLIENT_LEFT, "client_left", monotonic())

    def cut(self, error: ErrorAnswer) -> None:
        """End now with an explicit error: the replica or this agent is going away."""
        self._stop_attempt()
        self._answer_error(error)

    def leave_replica(self, error: ErrorAnswer) -> None:
        """Go on elsewhere, because the replica must be left now; else end with `error`."""
        if self._pause is not None or self.is_queued:
            return  # it has left already
        if self.transcript is not None and self.has_begun:
            self.attempt_failed(Failed("stopping", error.message))
        else:
            self.cut(error)

    @property
    def has_begun(self) -> bool:
        """Whether the client has the beginning of an answer."""
        attempt, transcript = self.attempt, self.transcript
        if attempt is not None and attempt.has_begun:
            return True
        return transcript is not None and transcript.is_continuing

    def client_is_full(self) -> None:
        """Read no more from the engine until the client has taken what it has."""
        self._client_is_full = True
        attempt = self.attempt
        if attempt is not None and attempt.connection is not None:
            attempt.connection.set_reading(False)
            self._limit = "client"
            self.deadline = monotonic() + CLIENT_STALL_S

    def client_has_room(self) -> None:
        """Read on."""
        self._client_is_full = False
        attempt = self.attempt
        if attempt is not None and attempt.connection is not None and self._limit == "client":
            attempt.connection.set_reading(True)
            self._limit = "stall"
            self.deadline = min(monotonic() + self._stall_s, self._end_at)

    def _stop_attempt(self) -> None:
        if self.attempt is not None:
            self.was_sent = self.attempt.connection is not None
            self.attempt.stop("none", monotonic())

    def _break(self, error: ErrorAnswer, failed: Failed | None) -> None:
        """End an answer that has begun: with an error event, or by cutting the connection."""
        attempt = self.attempt
        self.detail = life.own_words(error.code, error.message)
        is_continuing = self.transcript is not None and self.transcript.is_continuing
        if is_continuing or (attempt is not None and attempt.is_stream):
            own_words = failed is not None and failed.event
            self.client.end(own_words or error.event())
        else:
            self.client.abort()
        self._finish(error.status, error.code, monotonic())

    def _give_up(self, failed: Failed) -> None:
        """Answer with the engine's own refusal if it made one, else with our error."""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101 - something failed
        if self.has_begun:
            self._break(outcome.final_error(failed, attempt.replica), failed)
            return
        code = outcome.IN_ITS_WORDS.get(failed.failure)
        if code is not None and failed.status:
            lines, body = outcome.engine_words(failed)
            self.client.respond(failed.status, lines + self.own_headers(), body)
            self._finish(failed.status, code, monotonic())
        else:
            self._answer_error(outcome.final_error(failed, attempt.replica))

    def _answer_error(self, error: ErrorAnswer) -> None:
        if self.has_begun:
            self._break(error, None)
            return
        self.detail = life.own_words(error.code, error.message)
        lines = b"content-type: application/json\r\n" + error.headers()
        self.client.respond(error.status, lines + self.own_headers(), error.body())
        self._finish(error.status, error.code, monotonic())

    def _note_tokens(self, record: FinishedRequest) -> None:
        replica = self.bound_to
        if replica is not None:
            replica.prompt_tokens_total += record.prompt_tokens
            replica.cached_prompt_tokens_total += record.cached_prompt_tokens
            replica.output_tokens_total += record.output_tokens

    def _finish(self, status: int, error: str, now: float) -> None:
        """Give back what the request holds, and write its one record."""
        if self._is_finished:
            return
        self._is_finished = True
        self.deadline = NEVER
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self.is_queued and self._ticket is not None and self._pool is not None:
            self.proxy.line(self._pool.pool.name).leave(self._ticket)
        self._note_tokens(
            record := outcome.record(self, status, error, now=now, wall=self.proxy.wall)
        )
        destination = self.destination
        if destination is not None:
            gate = self.proxy.fleet.gate(self.caller.tenant, now)
            used = record.prompt_tokens + record.output_tokens
            gate.release(charged=destination.charge_tokens, used=used)
        if self.is_sampled or status >= FAILED_FROM:
            self.proxy.keep(self, record, now)
        # Without the attempt, which knows its exchange, nothing is left for the cycle collector.
        self._body = b""
        self.attempt = None
        self.proxy.finished(self, record)
        if self._pool is not None:
            self.proxy.room_made(self._pool)
        self.client.exchange_over()
