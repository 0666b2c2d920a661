"""What one request holds, its time limits, and how it ends.

What an attempt holds is given back by `Attempt.stop`, what the whole request holds (its place in a
queue, its tenant's share) by `_finish`. Every way out ends there, and both are safe to call twice.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from routing_agent.core import load
from routing_agent.core.choose import Choice
from routing_agent.core.deadlines import (
    OTHERS_PACE,
    Limit,
    Phase,
    next_deadline,
)
from routing_agent.core.fairness import FairShares
from routing_agent.core.fleet import PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.core.sampling import FAILED_FROM, is_in_share
from routing_agent.core.stages import Try
from routing_agent.core.table import KeyOwner, Model
from routing_agent.metrics import FinishedRequest
from routing_agent.proxy import admission, ids, life, outcome, tracing
from routing_agent.proxy.answer import Failed
from routing_agent.proxy.attempt import Attempt
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.prompt import CACHED_PATHS, chained
from routing_agent.proxy.request import ParsedRequest, envelope_of
from routing_agent.proxy.transcript import Transcript

if TYPE_CHECKING:
    from routing_agent import wire
    from routing_agent.proxy.incoming import Incoming
    from routing_agent.proxy.ingress import ClientConnection
    from routing_agent.proxy.server import Proxy
    from routing_agent.proxy.shadow_copy import Copy

# How long a client may take no bytes before we give it up.
CLIENT_STALL_S: Final = 60.0
CLIENT_LEFT: Final = 499
NEVER: Final = float("inf")
_GENERATES: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)


class HeldRequest:
    """One request: its state, its limits and its ends. What happens in between is `Exchange`'s."""

    # Defaults on the class keep the making of an exchange cheap.
    request: ParsedRequest | None = None
    destination: admission.Destination | None = None
    choice: Choice | None = None
    attempt: Attempt | None = None
    attempts = 0
    strip_usage = False
    copy: Copy | None = None  # of this request, on its way to a shadow
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
    cascade_rule: wire.CascadeRule | None = None  # of a small model's answer that is to be judged
    strip_logprobs = False  # only we asked for them
    second_best: tuple[bytes, bytes, Model] | None = None  # a small model's answer: headers, body
    wasted_tokens = 0  # of that answer
    _fair_charge: tuple[FairShares, float] | None = None  # of one that waited in a queue
    _failed: Failed | None = None  # what the last attempt met
    _fallen_back = False
    _is_finished = False
    _limit: Limit = "end_to_end"
    _pause: asyncio.TimerHandle | None = None
    _pool: PoolState | None = None
    canonical_bytes = 0  # of the prompt whose blocks the choice knew
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

    @property
    def generates(self) -> bool:
        """Whether the engine writes tokens for this call."""
        return self.incoming.path in _GENERATES

    @property
    def pool(self) -> PoolState | None:
        """The pool that serves this request, if one was found."""
        return self._pool

    @property
    def adapter(self) -> str:
        """What engines know the adapter by that this request is for; "" if it is for none."""
        return "" if self.request is None else self.request.adapter

    @property
    def bound_to(self) -> Replica | None:
        """The replica that works on this request."""
        return None if self.attempt is None else self.attempt.replica

    @property
    def has_begun(self) -> bool:
        """Whether the client has the beginning of an answer."""
        attempt, transcript = self.attempt, self.transcript
        if attempt is not None and attempt.has_begun:
            return True
        return transcript is not None and transcript.is_continuing

    def own_headers(self) -> bytes:
        """Give the header lines that we add to an answer."""
        return outcome.own_headers(self)

    def attempt_failed(self, failed: Failed) -> None:
        """Try again if that is allowed and makes sense, else tell the client."""
        raise NotImplementedError

    # -- limits --------------------------------------------------------------------------------

    def _enter(self, phase: Phase, began: float) -> None:
        """Begin a phase, whose limit is the next deadline."""
        pool = self._pool
        assert pool is not None  # noqa: S101 - set by _admit
        self.deadline, self._limit = next_deadline(
            phase, phase_began=began, end_at=self._end_at, settings=pool.settings
        )

    def forgive(self, lost_s: float) -> None:
        """Put off a limit of somebody else's pace by the time in which we did not look."""
        if self._limit in OTHERS_PACE:
            self.deadline += lost_s
            if self.deadline >= self._end_at:
                self.deadline = self._end_at
                self._limit = "client" if self._limit == "client" else "end_to_end"

    def deadline_passed(self) -> None:
        """End the phase whose limit has passed."""
        if self._limit == "client" and self.proxy.now >= self._end_at:
            self.cut(outcome.TAKEN_TOO_SLOWLY)
        elif self._limit == "client":
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

    def client_is_full(self) -> None:
        """Read no more from the engine until the client has taken what it has."""
        self._client_is_full = True
        attempt = self.attempt
        if attempt is not None and attempt.connection is not None:
            attempt.connection.set_reading(False)
            self._limit = "client"
            self.deadline = min(monotonic() + CLIENT_STALL_S, self._end_at)

    def client_has_room(self) -> None:
        """Read on."""
        self._client_is_full = False
        attempt = self.attempt
        if attempt is not None and attempt.connection is not None and self._limit == "client":
            attempt.connection.set_reading(True)
            self._limit = "stall"
            self.deadline = min(monotonic() + self._stall_s, self._end_at)

    def leave_replica(self, error: ErrorAnswer) -> None:
        """Go on elsewhere, because the replica must be left now; else end with `error`."""
        if self._pause is not None or self.is_queued:
            return  # it has left already
        if self.transcript is not None and self.has_begun:
            self.attempt_failed(Failed("stopping", error.message))
        else:
            self.cut(error)

    # -- ends ----------------------------------------------------------------------------------

    def client_left(self) -> None:
        """Stop at once: nobody waits for the answer any more."""
        self._stop_attempt()
        self.client.abort()
        self._finish(CLIENT_LEFT, "client_left", monotonic())

    def cut(self, error: ErrorAnswer) -> None:
        """End now with an explicit error: the replica or this agent is going away."""
        self._stop_attempt()
        self._answer_error(error)

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
        if code is not None and failed.status and self.second_best is None:
            lines, body = outcome.engine_words(failed)
            self.client.respond(failed.status, lines + self.own_headers(), body)
            self._finish(failed.status, code, monotonic())
        else:
            self._answer_error(outcome.final_error(failed, attempt.replica))

    def _answer_error(self, error: ErrorAnswer) -> None:
        if self.has_begun:
            self._break(error, None)
            return
        if self.second_best is not None:
            self._answer_second_best(*self.second_best)
            return
        self.detail = life.own_words(error.code, error.message)
        lines = b"content-type: application/json\r\n" + error.headers()
        self.client.respond(error.status, lines + self.own_headers(), error.body())
        self._finish(error.status, error.code, monotonic())

    def _answer_second_best(self, lines: bytes, body: bytes, small: Model) -> None:
        """Send what the small model wrote: the large one has nothing better."""
        assert self.destination is not None  # noqa: S101 - something was escalated
        self.destination.path, self.destination.model = "cascade", small
        self.client.respond(200, lines, body)
        self._finish(200, "", monotonic())

    def _note_tokens(self, record: FinishedRequest) -> None:
        attempt, asked = self.attempt, self._route_request
        if attempt is None:
            return
        replica = attempt.replica
        replica.prompt_tokens_total += record.prompt_tokens
        replica.cached_prompt_tokens_total += record.cached_prompt_tokens
        replica.output_tokens_total += record.output_tokens
        if attempt.placement is not None and asked is not None:
            outcome.note_counted(self, attempt, asked)

    def _know_prefix(self, pool: PoolState, now: float) -> None:
        """Take the prompt's blocks along where the pool's choice is by them, and there is one."""
        to, request, table = self.destination, self._route_request, self.proxy.fleet.table
        if to is None or request is None or table is None or self.request is None:
            return
        request.blocks = ()
        if not (pool.uses_prefixes and self.incoming.path in CACHED_PATHS and pool.has_choice(now)):
            return
        envelope = self.request.envelope or envelope_of(self._body)
        if envelope is not None:
            request.blocks, self.canonical_bytes = chained(
                envelope, table, version=pool.pool.version, adapter=request.adapter
            )
            ratio = self.proxy.fleet.ratios.ratio(to.model.name, to.model.bytes_per_token)
            request.block_tokens = table.block_bytes / ratio
            request.prompt_tokens = load.prompt_tokens(self.request.prompt_bytes, ratio)

    def _note_path(self, to: admission.Destination, record: FinishedRequest) -> None:
        """Count how it was decided who answers, and learn what a token of its model weighs."""
        metrics, pool = self.proxy.metrics, self._pool
        if to.path:
            metrics.took_path((to.asked, to.path, to.model.name), record, self.wasted_tokens)
        if to.model.has_shapes and pool is not None:
            metrics.took_path((to.model.name, "shape", pool.pool.name), record, 0)
            request = self.request
            if request is not None and not record.estimated:
                told, prompt = to.model.bytes_per_token, request.prompt_bytes
                self.proxy.fleet.ratios.learn(to.model.name, told, prompt, record.prompt_tokens)

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
        if destination is not None and (destination.path or destination.model.has_shapes):
            self._note_path(destination, record)
        if self._fair_charge is not None:
            shares, charged = self._fair_charge
            tenant = self.caller.tenant.name
            shares.settle(tenant, charged, record.prompt_tokens, record.output_tokens)
        if self.is_sampled or status >= FAILED_FROM:
            self.proxy.keep(self, record, now)
        # Without the attempt, which knows its exchange, nothing is left for the cycle collector.
        self._body = b""
        self.attempt = None
        if self.copy is not None:
            self.copy.primary_over(record)
            self.copy = None
        self.proxy.finished(self, record)
        if self._pool is not None:
            self.proxy.room_made(self._pool)
        self.client.exchange_over()
