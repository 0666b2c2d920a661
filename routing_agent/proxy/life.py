"""The record of one request's life: built only for requests that are kept, never on the hot path.

No prompt, output or key goes into it, nor an engine's own words, which may quote a prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from routing_agent import wire
from routing_agent.core.sampling import why_kept
from routing_agent.core.stages import Life, Stretch, Try, stages_of
from routing_agent.metrics import FinishedRequest
from routing_agent.proxy import tracing
from routing_agent.proxy.answer import Failed

if TYPE_CHECKING:
    from routing_agent.proxy.attempt import Attempt
    from routing_agent.proxy.errors import ErrorAnswer
    from routing_agent.proxy.held import HeldRequest
    from routing_agent.proxy.incoming import Incoming

CLIENT_LEFT: Final = 499
# Errors whose message repeats what an engine said; the attempts tell the same in our words.
_ENGINES_WORDS: Final = frozenset({"engine_failed", "engine_too_slow", "engine_busy"})
_REASON_LENGTH: Final = 300


def words_of(failed: Failed) -> str:
    """Say what an attempt met, without the engine's own words."""
    if failed.failure == "unsure":
        return f"its answer is not trusted: {failed.detail}"[:_REASON_LENGTH]
    if failed.is_event:
        return "the engine sent an error event"
    if failed.status:
        return f"the engine answered {failed.status}"
    return failed.detail[:_REASON_LENGTH]


def failed_try(exchange: HeldRequest, attempt: Attempt, failed: Failed, now: float) -> Try:
    """Note an attempt that failed."""
    one = _try(exchange, attempt, now)
    one.outcome = failed.failure
    one.reason = words_of(failed)
    one.was_sent = failed.failure != "connect"
    return one


def record_of(
    exchange: HeldRequest, done: FinishedRequest, *, now: float, wall: float
) -> wire.RequestRecord:
    """Give the record of a request that ended; `wall` is Unix seconds at `now`."""
    came_with = exchange.came_with
    tries = _all_tries(exchange, done, now)
    life = Life(
        received_at=exchange.incoming.received_at,
        queued_at=exchange.queued_at,
        tries=tries,
        ended_at=now,
        status=done.status,
        error=done.error,
    )
    clock = wall - now  # added to a monotonic moment it gives Unix seconds
    traced = came_with is not None and came_with.is_sampled
    return wire.RequestRecord(
        uid=exchange.own_id.decode(),
        request_id=done.request_id,
        received_at=_ms(life.received_at + clock),
        kept=why_kept(done.status, traced=traced),
        trace_id=(exchange.own_id if came_with is None else came_with.trace_id).decode(),
        span_id=tracing.span_id(exchange.own_id, tracing.SERVER_SPAN, came_with).decode(),
        parent_span_id="" if came_with is None else came_with.span_id.decode(),
        tenant=done.tenant,
        api_key=done.api_key,
        model=done.model,
        adapter=done.adapter,
        path=done.path,
        stream=done.stream,
        status=done.status,
        error=done.error,
        detail=_detail(exchange, tries),
        decision=_decision(exchange),
        stages=tuple(_stage(stretch, clock) for stretch in stages_of(life)),
        attempts=tuple(_attempt(one, clock, exchange) for one in tries),
        prompt_tokens=done.prompt_tokens,
        cached_prompt_tokens=done.cached_prompt_tokens,
        output_tokens=done.output_tokens,
        estimated=done.estimated,
        queue_wait_s=_ms(done.queue_wait_s),
        ttft_s=done.ttft_s,
        tpot_s=done.tpot_s,
        e2e_s=done.e2e_s,
    )


def refusal(
    incoming: Incoming, error: ErrorAnswer, ids: tuple[bytes, bytes], *, wall: float
) -> wire.RequestRecord:
    """Give the record of a request that was refused before it was one; `ids` are ours and its."""
    at = _ms(wall)
    came_with = tracing.caller(incoming.headers)
    return wire.RequestRecord(
        uid=ids[0].decode(),
        request_id=ids[1].decode(),
        received_at=at,
        kept="failure",
        trace_id=(ids[0] if came_with is None else came_with.trace_id).decode(),
        span_id=tracing.span_id(ids[0], tracing.SERVER_SPAN, came_with).decode(),
        parent_span_id="" if came_with is None else came_with.span_id.decode(),
        tenant=incoming.caller.tenant.name,
        api_key=incoming.caller.key_id,
        path=incoming.path[:_REASON_LENGTH],
        status=error.status,
        error=error.code,
        detail=error.message,
        stages=(
            wire.StageRecord(stage="RECEIVED", at=at),
            wire.StageRecord(stage="FAILED", at=at, reason=error.code),
        ),
    )


def _all_tries(exchange: HeldRequest, done: FinishedRequest, now: float) -> tuple[Try, ...]:
    """Give the failed attempts, and the last one if it did not fail by itself."""
    attempt = exchange.attempt
    if attempt is None or exchange.attempts <= len(exchange.tries):
        return exchange.tries
    last = _try(exchange, attempt, now)
    last.was_sent = exchange.was_sent or attempt.answer is not None
    if done.status == CLIENT_LEFT:
        last.outcome, last.reason = "left", "the client left"
    elif done.error:
        last.outcome, last.reason = "cut", exchange.detail[:_REASON_LENGTH]
    return (*exchange.tries, last)


def _try(exchange: HeldRequest, attempt: Attempt, now: float) -> Try:
    choice = exchange.choice
    return Try(
        replica=attempt.replica.id,
        started_at=attempt.started_at,
        connect_s=attempt.connect_s,
        was_sent=True,
        first_token_at=attempt.first_token_at,
        ended_at=now,
        route="" if choice is None else choice.route,
        chosen_because="" if choice is None else choice.reason,
        number=exchange.attempts,
    )


def _detail(exchange: HeldRequest, tries: tuple[Try, ...]) -> str:
    if exchange.detail:
        return exchange.detail[:_REASON_LENGTH]
    return tries[-1].reason if tries else ""


def own_words(code: str, message: str) -> str:
    """Give an error's message for the record, or "" if an engine's words are in it."""
    return "" if code in _ENGINES_WORDS else message


def _decision(exchange: HeldRequest) -> wire.DecisionRecord:
    pool, choice = exchange.pool, exchange.last_choice
    if pool is None or choice is None:
        return wire.DecisionRecord()
    return wire.DecisionRecord(
        pool=pool.pool.name,
        version=pool.pool.version,
        policy=pool.settings.policy,
        replica="" if choice.replica is None else choice.replica.id,
        route="" if choice.replica is None else choice.route,
        reason=choice.reason[:_REASON_LENGTH],
        candidates=exchange.candidates,
        candidates_total=len(pool.replicas),
    )


def _stage(stretch: Stretch, clock: float) -> wire.StageRecord:
    return wire.StageRecord(
        stage=stretch.stage,
        at=_ms(stretch.began_at + clock),
        duration_s=round(stretch.ended_at - stretch.began_at, 6),
        estimated=stretch.estimated,
        reason=stretch.reason,
    )


def _attempt(one: Try, clock: float, exchange: HeldRequest) -> wire.AttemptRecord:
    return wire.AttemptRecord(
        replica=one.replica,
        at=_ms(one.started_at + clock),
        duration_s=round(one.ended_at - one.started_at, 6),
        route=one.route,
        chosen_because=one.chosen_because,
        outcome=one.outcome,
        reason=one.reason,
        next=one.next,
        span_id=tracing.span_id(exchange.own_id, one.number, exchange.came_with).decode(),
    )


def _ms(seconds: float) -> float:
    return round(seconds, 3)
