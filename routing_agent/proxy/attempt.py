"""One attempt of a request at one replica: charge, connection, answer.

What `__init__` takes, `stop` gives back: it is the one guard, and calling it twice does nothing.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, Literal, Protocol

from routing_agent.core.engine_errors import Kind
from routing_agent.core.engine_traits import linger_s
from routing_agent.core.fleet import PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import Placement
from routing_agent.core.replica import Replica
from routing_agent.core.retries import Failure
from routing_agent.proxy.answer import Client, Failed, PlainAnswer, StreamAnswer, answer_for
from routing_agent.proxy.request import ParsedRequest
from routing_agent.proxy.transcript import Transcript
from routing_agent.proxy.upstream import EngineConnection, EngineLink
from routing_agent.wire import CascadeRule

# A kept-alive connection that dies this soon after a request was written to it, without a byte of
# an answer, was being closed by the engine already: the request was never read, so sending it on a
# new connection executes it once.
CLOSE_RACE_S: Final = 0.5

# How many connect limits an attempt waits at most while its engine accepts other connections.
BURST_PATIENCE: Final = 4

Verdict = Literal["good", "bad", "none"]

# What an answer says about every further request.
REFUSES_FOR_GOOD: Final[dict[Kind, str]] = {
    "stopping": "draining: it takes no new requests",
    "dead": "dead: its core has failed; restart it",
}


class Owner(Protocol):
    """The exchange an attempt belongs to."""

    strip_usage: bool
    cascade_rule: CascadeRule | None
    strip_logprobs: bool
    request: ParsedRequest | None
    transcript: Transcript | None

    @property
    def client(self) -> Client:
        """The client the answer goes to."""
        ...

    def own_headers(self) -> bytes:
        """Give the header lines that we add to an answer."""
        ...

    def attempt_sent(self) -> None:
        """The request is on its way to the engine."""
        ...

    def attempt_moved(self) -> None:
        """Part of the answer has come."""
        ...

    def stream_began(self, connection: EngineConnection, answer: StreamAnswer) -> None:
        """The client has the first token of a stream, and what comes next goes to it alone."""
        ...

    def attempt_done(self) -> None:
        """The answer has been relayed to its end."""
        ...

    def attempt_failed(self, failed: Failed) -> None:
        """The attempt is over without a good end."""
        ...


class Attempt:
    """One try at one replica."""

    __slots__ = ("_connecting", "_head", "_is_over", "_patience", "_raced", "_sent_at", "_tokens",
                 "_trial", "adapter", "answer", "body", "connect_s", "connection", "first_token_at",
                 "link", "owner", "placement", "pool", "replica", "started_at",
                 "tee")  # fmt: skip

    def __init__(
        self, owner: Owner, pool: PoolState, link: EngineLink, *, tokens: int, now: float
    ) -> None:
        self.owner = owner
        self.link = link
        self.replica: Replica = link.replica
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.connection: EngineConnection | None = None
        self.connect_s: float | None = None
        self.first_token_at: float | None = None
        self.started_at = now
        self.pool = pool
        self.placement: Placement | None = None  # where the pool's policy looks at prefixes
        self._connecting: asyncio.Task[None] | None = None
        self._head = b""
        self.body = b""
        self.tee: Client | None = None  # what the answer goes through, where it is copied
        self._is_over = False
        self._patience = BURST_PATIENCE
        self._raced = False
        self._sent_at = now
        self._tokens = tokens
        self._trial = self.replica.begin(tokens, now)
        self.adapter = "" if owner.request is None else owner.request.adapter
        if self.adapter:
            self.replica.adapters.begin(self.adapter)

    def start(self, head: bytes, body: bytes) -> None:
        """Send the request on an idle connection, or on a new one."""
        self._head = head
        self.body = body
        connection = self.link.take_idle()
        if connection is None:
            self._connecting = self.link.connect(self)
        else:
            self._send(connection, self.started_at)

    def place(self, request: RouteRequest, now: float, *, shows_first_token: bool) -> None:
        """Note what the replica was given to compute, unless all is over already."""
        if not self._is_over:
            self.placement = self.pool.note_placed(
                request, self.replica, now=now, shows_first_token=shows_first_token
            )

    def stop(self, verdict: Verdict, now: float, *, reuse: bool = False) -> None:
        """Give back everything this attempt holds; `reuse` keeps the connection."""
        if self._is_over:
            return
        self._is_over = True
        replica = self.replica
        self._give_back(verdict)
        if self.adapter:
            replica.adapters.end(self.adapter)
        if self.placement is not None:
            replica.prefill.give_up(self.placement, now)
        if verdict == "good":
            replica.note_success(now, trial=self._trial)
        elif verdict == "bad":
            replica.note_failure(now, trial=self._trial, may_open=self.pool.may_eject())
        else:
            replica.note_abandoned(trial=self._trial)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if reuse:
            connection.release(now)
        else:
            connection.abort()

    def _give_back(self, verdict: Verdict) -> None:
        """Give the charge back: at once, or when the engine may have stopped working on it."""
        request, connection = self.owner.request, self.connection
        is_broken_off = verdict == "none" and connection is not None and not connection.is_complete
        if is_broken_off and request is not None:
            wait_s = linger_s(self.replica.endpoint.engine, is_stream=request.is_stream)
            if wait_s:
                loop = asyncio.get_running_loop()
                loop.call_later(wait_s, self.replica.release, self._tokens)
                return
        self.replica.release(self._tokens)

    @property
    def has_begun(self) -> bool:
        """Whether something of the answer has reached the client."""
        return self.answer is not None and self.answer.has_begun

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return isinstance(self.answer, StreamAnswer)

    def may_wait_on(self) -> bool:
        """Note a connect limit that passed; true if the connection may still be waited for.

        A burst can overrun an engine's queue of new connections; the kernel tries again after a
        second. If the engine let others in meanwhile it is not down, and the attempt waits longer.
        """
        self._patience -= 1
        return self._patience > 0 and self.link.connected_at >= self.started_at

    # -- Receiver of the connection ------------------------------------------------------------

    def connected(self, connection: EngineConnection) -> None:
        """Send the request on the connection that was just made."""
        self._connecting = None
        now = monotonic()
        self.connect_s = now - self.started_at
        self._send(connection, now)

    def connect_failed(self, reason: str, *, is_own_fault: bool) -> None:
        """Report that there is no connection, and whose fault it is."""
        self._connecting = None
        failure: Failure = "exhausted" if is_own_fault else "connect"
        self.owner.attempt_failed(Failed(failure, f"cannot connect: {reason}"))

    def arrived(self, connection: EngineConnection) -> None:
        """Relay what arrived."""
        answer = self.answer
        if answer is None:
            owner = self.owner
            answer = self.answer = answer_for(
                connection,
                owner.client if self.tee is None else self.tee,
                owner.own_headers(),
                strip_usage=owner.strip_usage,
                transcript=owner.transcript,
            )
            answer.adapter = self.adapter
            if owner.cascade_rule is not None and isinstance(answer, PlainAnswer):
                answer.judge, answer.strip_logprobs = owner.cascade_rule, owner.strip_logprobs
            if owner.request is not None and isinstance(answer, StreamAnswer):
                answer.choices = owner.request.choices
        failed = answer.arrived(connection)
        if self.first_token_at is None and answer.has_token:
            self.first_token_at = now = monotonic()
            if self.placement is not None:
                self.replica.prefill.note_first_token(self.placement, now)
            if answer.has_begun and self.tee is None and isinstance(answer, StreamAnswer):
                self.owner.stream_began(connection, answer)
        if failed is not None:
            self._note_refusal(failed)
            self.owner.attempt_failed(failed)
        elif connection.is_complete:
            self.owner.attempt_done()
        else:
            self.owner.attempt_moved()

    def _note_refusal(self, failed: Failed) -> None:
        """Send nothing more of a kind that the engine will not take; its prober finds out when."""
        if failed.failure == "not_resident":
            self.replica.adapters.note_lost(self.adapter, monotonic())
        reason = REFUSES_FOR_GOOD.get(failed.kind)
        if reason is not None:
            self.replica.note_doubt("answers", f"{reason} ({failed.detail})")

    def lost(self, connection: EngineConnection, reason: str) -> None:
        """Recover from a closing race, end a stream that was complete, or report the loss."""
        self.connection = None
        answer = self.answer
        if answer is None and self._was_closing(connection):
            self._raced = True
            self._connecting = self.link.connect(self)
        elif isinstance(answer, StreamAnswer) and answer.finish_cut(connection):
            self.owner.attempt_done()
        else:
            self.owner.attempt_failed(Failed("broken", reason))

    def _send(self, connection: EngineConnection, now: float) -> None:
        self.connection = connection
        self._sent_at = now
        connection.send(self, self._head, self.body)
        self.owner.attempt_sent()

    def _was_closing(self, connection: EngineConnection) -> bool:
        return (
            connection.is_reused
            and not connection.saw_bytes
            and not self._raced
            and monotonic() - self._sent_at < CLOSE_RACE_S
        )
