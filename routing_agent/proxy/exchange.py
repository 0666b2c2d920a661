"""The life of one request: received, queued, bound, relayed; its ends are in `held`."""

from __future__ import annotations

from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from routing_agent.core.adapters import is_loaded
from routing_agent.core.choose import Choice, choose
from routing_agent.core.continuation import CONTINUED_PATHS
from routing_agent.core.deadlines import (
    first_byte_limit_s,
)
from routing_agent.core.engine_traits import adapter_model
from routing_agent.core.explain import candidates_of
from routing_agent.core.fleet import PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.waiting import line_limit
from routing_agent.proxy import admission, continuation, outcome, which_model
from routing_agent.proxy.again import RetriedRequest
from routing_agent.proxy.attempt import Attempt
from routing_agent.proxy.chunks import only_chunk
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.request import USAGE_ON_REQUEST, RequestRefused, parse
from routing_agent.proxy.splice import rewrite, without
from routing_agent.proxy.transcript import Transcript

if TYPE_CHECKING:
    from routing_agent.proxy.answer import StreamAnswer
    from routing_agent.proxy.stream import EventReader
    from routing_agent.proxy.upstream import EngineConnection


class Exchange(RetriedRequest):
    """One request on its way."""

    _reader: EventReader | None = None  # of a stream whose tokens may pass as they come

    # -- in ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Judge the request and send it on its way, or answer with what is wrong with it."""
        now = self.incoming.received_at
        try:
            if not self._admit(now):
                return  # it waits for its tenant's share
        except RequestRefused as refusal:
            self._answer_error(refusal.answer)
            return
        if self.proxy.is_turn_due:
            self.proxy.let_waiting_go_first()
        self._dispatch(now)

    def _admit(self, now: float) -> bool:
        """Judge the request; false if it waits for one lease call. Raises `RequestRefused`."""
        fleet = self.proxy.fleet
        table = fleet.table
        if table is None:
            raise RequestRefused(admission.NO_TABLE)
        path = self.incoming.path
        request = self.request = parse(self._body, path)
        session_header = self.incoming.headers.get(b"x-session-id")
        destination = admission.find_destination(
            fleet, table, self.caller, request, session_header, self._body
        )
        if destination.model.cascade is not None:
            which_model.cascade(fleet, table, destination, request, path)
        admission.check_pool(destination.pool, path, len(self._body))
        admitted = fleet.gate(self.caller.tenant, now).admit(destination.charge_tokens, now)
        if not admitted.admitted:
            desk = self.proxy.wait_for_lease
            if not admitted.may_lease or desk is None:
                raise admission.quota_refusal(self.caller, admitted)
            desk(
                self.caller.tenant.name,
                destination.charge_tokens,
                lambda: self._lease_over(destination),
            )
            return False
        self._accept(destination, now)
        return True

    def _lease_over(self, destination: admission.Destination) -> None:
        """Go on with what the lease call brought, or refuse: there is no second one."""
        if self._is_finished:
            return
        now = monotonic()
        gate = self.proxy.fleet.gate(self.caller.tenant, now)
        admitted = gate.admit(destination.charge_tokens, now)
        if not admitted.admitted:
            self._answer_error(admission.quota_refusal(self.caller, admitted).answer)
            return
        self._accept(destination, now)
        if self.proxy.is_turn_due:
            self.proxy.let_waiting_go_first()
        self._dispatch(now)

    def _accept(self, destination: admission.Destination, now: float) -> None:
        """Note where an admitted request is to go, and its limits."""
        request, path = self.request, self.incoming.path
        assert request is not None  # noqa: S101 - set by _admit
        self.destination = destination
        self._pool = destination.pool
        self._route_request = RouteRequest(
            destination.charge_tokens,
            destination.session,
            adapter=request.adapter,
            prompt_tokens=destination.prompt_tokens,
        )
        self._route_request.may_wait = destination.pool.bind_ahead_s > 0
        if destination.pool.uses_prefixes:
            self._know_prefix(destination.pool, now)
        request.envelope = None
        self.strip_usage = (
            request.is_stream and not request.wants_usage and path in USAGE_ON_REQUEST
        )
        settings = destination.pool.settings
        self._end_at = now + settings.end_to_end_limit_s
        self._stall_s = settings.stall_limit_s
        if settings.broken_stream == "continue" and request.is_stream and path in CONTINUED_PATHS:
            self.transcript = Transcript(path)
        destination.pool.budget.earn()

    # -- choosing ------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        pool, request = self._pool, self._route_request
        assert pool is not None and request is not None  # noqa: S101, PT018 - set by _admit
        if request.may_wait and self._ticket is None:
            self.proxy.let_line_go_first(pool)
        choice = self.last_choice = self._choose(pool, request, now)
        if self.is_sampled or self.attempts or choice.replica is None:
            self.candidates = candidates_of(request, pool, choice.replica, now=now)
        if choice.replica is not None:
            if self._fallen_back:
                choice.route = "fallback"
            self._bind(choice, now)
        else:
            self._not_placed(choice, pool, now)

    def _not_placed(self, choice: Choice, pool: PoolState, now: float) -> None:
        """Wait where that makes sense and is allowed, else tell the client why nobody takes it."""
        if choice.is_held:
            self._hold_back(pool, now)
        elif choice.awaited is not None and not self.has_begun:
            self._queue(pool, now)
        elif pool.pool.overload == "fallback" and not self.has_begun and self._fall_back(pool):
            self._dispatch(now)
        elif self._failed is not None and not (choice.is_full and pool.pool.overload == "queue"):
            self._give_up(self._failed)
        elif not choice.is_full and pool.awaits_replica() and not self.has_begun:
            self._await_replica(pool, now)
        elif not choice.is_full:
            self._answer_error(self._nobody(choice, pool))
        elif pool.pool.overload == "queue":
            self._queue(pool, now)
        else:
            self._shed(pool, "overloaded", "all replicas are at their concurrency ceiling")

    def _nobody(self, choice: Choice, pool: PoolState) -> ErrorAnswer:
        """Say why no replica takes this request."""
        fleet, to, name = self.proxy.fleet, self.destination, self.adapter
        if name and to is not None and not is_loaded(fleet.pools, to.model, name):
            adapter = None if fleet.table is None else fleet.table.served_adapters.get(name)
            if adapter is not None:
                return admission.not_loaded(fleet, to.model, adapter)
        message = f"No replica of pool '{pool.pool.name}' can take this request: {choice.reason}."
        return ErrorAnswer("no_replica", message, retry_after_s=5.0)

    def _choose(self, pool: PoolState, request: RouteRequest, now: float) -> Choice:
        began = perf_counter()
        if pool.siblings is None:
            choice = choose(request, pool, now=now, chance=self.proxy.chance)
        else:
            choice = pool.siblings.choose(request, now=now, chance=self.proxy.chance)
        if self.destination is not None and self.destination.path in which_model.CASCADES:
            choice.route = "cascade"
        metrics = self.proxy.metrics
        metrics.decisions += 1
        metrics.decision_sum_s += perf_counter() - began
        return choice

    def _fall_back(self, pool: PoolState) -> bool:
        fallback = self.proxy.fleet.pools.get(pool.pool.fallback_pool)
        if fallback is None or self._fallen_back:
            return False
        self._fallen_back = True
        self._pool = fallback
        self._know_prefix(fallback, monotonic())
        self.proxy.metrics.shed(pool.pool, "fallback")
        return True

    def _await_replica(self, pool: PoolState, now: float) -> None:
        """Wait for a replica that is to be started, for as long as the pool says."""
        self._queue(pool, now, replicas=pool.pool.may_grow_to)
        if self.is_queued and self.queued_at is not None:
            self.deadline = min(self.queued_at + pool.pool.start_wait_s, self._end_at)

    def _hold_back(self, pool: PoolState, now: float) -> None:
        """Wait until a replica has less to do; if nobody else may wait, it need not either."""
        settings, line = pool.settings, self.proxy.line(pool.pool.name)
        limit = line_limit(
            per_replica=settings.queue_limit_per_replica, healthy=pool.usable(now)
        )  # fmt: skip
        if self._ticket is None and len(line) >= limit:
            assert self._route_request is not None  # noqa: S101 - set by _accept
            self._route_request.may_wait = False
            self._dispatch(now)
            return
        if self._ticket is None:
            self.proxy.metrics.held_total[pool.pool.name] += 1
        self._queue(pool, now)

    def _queue(self, pool: PoolState, now: float, *, replicas: int = 0) -> None:
        """Join the pool's queue; `replicas` that may come make it longer."""
        line = self.proxy.line(pool.pool.name)
        if self.proxy.shadows.copies:
            self.proxy.shadows.make_room(pool.pool.name)
        if self._ticket is not None:
            returns = not self.is_queued  # it had its turn, and there was no room
            line.ready(self, self._wants(), ticket=self._ticket, returns=returns)
            self.is_queued = True
            return
        limit = line_limit(
            per_replica=pool.settings.queue_limit_per_replica,
            healthy=max(pool.usable(now), replicas),
        )
        waiting, siblings = len(line), pool.siblings
        if waiting >= limit or (siblings is not None and not siblings.take_place(waiting, limit)):
            wait_s = line.pace.wait_s(len(line), now)
            self._shed(pool, "queue_full", f"its queue of {limit} is full", wait_s)
            return
        self._ticket = line.join(self, self._wants())
        self.is_queued = True
        if self.queued_at is None or self.has_begun:
            self.queued_at = now
        self._enter("queued", self.queued_at)

    def _shed(self, pool: PoolState, code: str, what: str, wait_s: float = 1.0) -> None:
        self.proxy.metrics.shed(pool.pool, pool.pool.overload)
        message = f"Pool '{pool.pool.name}' is overloaded: {what}. Try again shortly."
        self._answer_error(ErrorAnswer(code, message, retry_after_s=wait_s, limit="concurrency"))

    # -- one attempt ---------------------------------------------------------------------------

    def _bind(self, choice: Choice, now: float) -> None:
        replica, pool, request = choice.replica, self._pool, self._route_request
        assert replica is not None and pool is not None and request is not None  # noqa: S101, PT018
        self.choice = choice
        self.attempts += 1
        if choice.spill:
            self.proxy.metrics.spills_total[(pool.pool.name, choice.spill)] += 1
        if self._ticket is not None:
            self.proxy.line(pool.pool.name).pace.served(now)
            self._ticket = None
            if self._fair_charge is None:
                self._charge_share(pool)
            if self.queued_at is not None and not self.has_begun:
                self.queue_wait_s = now - self.queued_at
        request.tried = (*request.tried, replica.id)
        link = self.proxy.link(replica)
        self.attempt = Attempt(self, pool, link, tokens=request.tokens, now=now)
        self.attempt.start(*self._outgoing(pool, link.head()))
        if pool.notes_placements and self.attempt is not None:
            is_stream = self.request is not None and self.request.is_stream
            self.attempt.place(request, now, shows_first_token=is_stream and self.generates)
        if pool.pool.shadow is not None or self.copy is not None:
            self.proxy.shadows.bound(self, pool, self._body)
        if self.attempt.connection is None and not self._is_finished:
            self._enter("connecting", now)

    def _charge_share(self, pool: PoolState) -> None:
        """Count a request that waited in its tenant's share; once, and settled at its end."""
        wants = self._wants()
        charge = pool.shares.serve(wants.tenant, wants.prompt_tokens, wants.output_tokens)
        self._fair_charge = (pool.shares, charge)

    def _outgoing(self, pool: PoolState, engine_lines: bytes) -> tuple[bytes, bytes]:
        """Give head and body of the request as the engine is to see it."""
        request, attempt = self.request, self.attempt
        assert request is not None and attempt is not None  # noqa: S101, PT018 - set by callers
        served = attempt.replica.endpoint.served_model or pool.pool.model
        body = self._body
        if self.transcript is not None and self.transcript.is_continuing:
            body = continuation.extended(body, self.transcript, attempt.replica.endpoint.engine)
        if request.adapter:
            served = (
                adapter_model(attempt.replica.endpoint.engine, served, request.adapter) or served
            )
            if request.lora is not None:
                body = without(body, "lora")
        destination = self.destination
        if destination is not None and destination.path == "cascade":
            body = self._judged_body(body)
        if self.strip_usage or served != request.model:
            model = served if served != request.model else None
            body = rewrite(
                body,
                model=model,
                ask_usage=self.strip_usage,
                may_have_options=request.may_have_options,
            )
        return outcome.request_head(self, engine_lines, len(body)), body

    def _judged_body(self, body: bytes) -> bytes:
        """Have the answer of a cascade's small model judged, by log-probabilities where it may."""
        assert self.destination is not None  # noqa: S101 - set by _accept
        self.cascade_rule = rule = self.destination.model.cascade
        if rule is None or rule.min_mean_logprob is None:
            return body
        asking = which_model.asking_logprobs(body, self.incoming.path)
        self.strip_logprobs = asking is not None
        return body if asking is None else asking

    # -- Owner of the attempt ------------------------------------------------------------------

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

    def stream_began(self, connection: EngineConnection, answer: StreamAnswer) -> None:
        """Have tokens passed on as they come from now on, if nobody has to read them."""
        if self.transcript is None and self.client.takes_chunks:
            self._reader = answer.reader
            connection.passing = self

    def passes(self, data: bytes) -> bool:
        """Pass a chunk on as it came if it is just one more token; else it is to be parsed.

        This is most of a stream: one chunk in one read, told from the last by its text only.
        """
        reader, event = self._reader, only_chunk(data)
        if reader is None or event == b"" or not reader.is_token(event):
            return False
        self.client.transport.write(data)
        self.attempt_moved()
        return True

    def attempt_done(self) -> None:
        """End well."""
        attempt = self.attempt
        if attempt is None or attempt.answer is None:
            return
        now = monotonic()
        attempt.stop("good", now, reuse=True)
        self._finish(attempt.answer.status, "", now)
