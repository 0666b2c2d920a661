"""What a request's end is made of: header lines, the final error, the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from routing_agent.core.deadlines import Limit
from routing_agent.core.kv_view import Ended
from routing_agent.core.policy import RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.core.retries import Failure
from routing_agent.metrics import FinishedRequest
from routing_agent.proxy import headers, tracing
from routing_agent.proxy.admission import LOADING_RETRY_S
from routing_agent.proxy.answer import Failed
from routing_agent.proxy.errors import ErrorAnswer

if TYPE_CHECKING:
    from routing_agent.proxy.attempt import Attempt
    from routing_agent.proxy.held import HeldRequest

LIMIT_WORDS: Final[dict[Limit, str]] = {
    "queue": "no replica was free in time",
    "connect": "no connection in time",
    "ttft": "no first token within the limit",
    "stall": "no further token within the limit",
    "end_to_end": "not finished within the end-to-end limit",
    "client": "the client took no more bytes",
}
# Failures that are answered in the engine's own words, and the code they are recorded under.
IN_ITS_WORDS: Final[dict[Failure, str]] = {"overloaded": "engine_busy", "refused": "engine_refused"}
# For an engine that says it is busy but not for how long, as vLLM does.
BUSY_RETRY_S: Final = b"1"
TAKEN_TOO_SLOWLY: Final = ErrorAnswer(
    "request_timeout",
    "The answer was not taken within the end-to-end limit. Read it faster, or ask for less.",
)
NOT_RESIDENT: Final = "This adapter is not loaded on any replica any more. Try again shortly."
_OK: Final = 200
# Bytes of a plain answer that make about one token, JSON around it included.
_ANSWER_BYTES_PER_TOKEN: Final = 6


def request_head(exchange: HeldRequest, engine_lines: bytes, length: int) -> bytes:
    """Give the head of a request to an engine. The path is ours, never the client's spelling."""
    incoming = exchange.incoming
    given = incoming.headers
    passed = b"".join([b"%b: %b\r\n" % (n, given[n]) for n in given if n in headers.TO_ENGINE])
    if exchange.came_with is not None:
        passed += exchange.came_with.state_line
    return (
        b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
        b"x-request-id: %b\r\ntraceparent: %b\r\n%b\r\n"
    ) % (
        incoming.path.encode(),
        engine_lines,
        length,
        exchange.request_id,
        tracing.traceparent(
            exchange.own_id, exchange.attempts, exchange.came_with, exchange.is_sampled
        ),
        passed,
    )


def own_headers(exchange: HeldRequest) -> bytes:
    """Give the header lines that we add to an answer."""
    request_id = b"x-request-id: %b\r\n" % exchange.request_id
    choice = exchange.choice
    if choice is None or exchange.attempt is None:
        return request_id
    lines = exchange.attempt.link.answer_lines(exchange.attempt.pool.pool)
    to = exchange.destination
    if to is not None and to.path:
        lines += b"x-signalbox-model: %b\r\n" % to.model.name.encode()
        if to.of_class:
            lines += b"x-signalbox-class: %b\r\n" % to.of_class.encode()
    return b"%b%bx-signalbox-route: %b\r\n" % (request_id, lines, choice.route.encode())


def final_error(failed: Failed, replica: Replica) -> ErrorAnswer:
    """Give the error a client gets when no attempt is left."""
    where = f"Replica '{replica.id}'"
    if failed.failure in ("too_slow", "hung"):
        message = f"{where} was too slow: {failed.detail}. Try again, or ask for fewer tokens."
        return ErrorAnswer("engine_too_slow", message)
    if failed.failure == "exhausted":
        message = f"This router has no socket left to reach {where}: {failed.detail}. Try again."
        return ErrorAnswer("no_replica", message, retry_after_s=1.0)
    if failed.failure == "not_resident":
        return ErrorAnswer("adapter_loading", NOT_RESIDENT, "model", retry_after_s=LOADING_RETRY_S)
    if failed.failure in ("overloaded", "stopping"):
        return ErrorAnswer("engine_busy", f"{where} is busy: {failed.detail}.", retry_after_s=1.0)
    return ErrorAnswer("engine_failed", f"{where} failed: {failed.detail}. Try again.")


def engine_words(failed: Failed) -> tuple[bytes, bytes]:
    """Give header lines and body of an engine's own refusal; one for overload has a Retry-After."""
    lines = b"content-type: %b\r\n" % failed.content_type
    if failed.failure == "overloaded":
        lines += b"retry-after: %b\r\n" % (failed.retry_after or BUSY_RETRY_S)
    return lines, failed.body


def record(
    exchange: HeldRequest, status: int, error: str, *, now: float, wall: float
) -> FinishedRequest:
    """Write the record of a request that ended."""
    attempt, destination, choice = exchange.attempt, exchange.destination, exchange.choice
    prompt, cached, output, estimated = _tokens(exchange)
    received = exchange.incoming.received_at
    first = exchange.first_token_at
    if first is None and attempt is not None:
        first = attempt.first_token_at
    pool = attempt.pool.pool if attempt is not None else None
    if pool is None and destination is not None:
        pool = destination.pool.pool
    caller = exchange.caller
    made = FinishedRequest(
        exchange.request_id.decode(), tenant=caller.tenant.name, status=status, at=wall
    )
    made.api_key, made.path = caller.key_id, exchange.incoming.path
    made.error, made.attempts = error, exchange.attempts
    if destination is not None:
        made.model, made.was_admitted = destination.model.name, True
    if pool is not None:
        made.pool, made.version = pool.name, pool.version
    if choice is not None:
        made.route, made.reason = choice.route, choice.reason
    if exchange.request is not None:
        made.stream, made.adapter = exchange.request.is_stream, exchange.request.adapter
    if attempt is not None:
        made.replica, made.connect_s = attempt.replica.id, attempt.connect_s
    made.prompt_tokens, made.cached_prompt_tokens = prompt, cached
    made.output_tokens, made.estimated = output, estimated
    made.queue_wait_s, made.e2e_s = exchange.queue_wait_s, now - received
    if first is not None:
        made.ttft_s = first - received
        made.tpot_s = (now - first) / (output - 1) if output > 1 else None
    return made


def note_counted(exchange: HeldRequest, attempt: Attempt, request: RouteRequest) -> None:
    """Hold the engine's own count against what its replica was believed to have cached."""
    placement, replica = attempt.placement, attempt.replica
    usage = None if attempt.answer is None else attempt.answer.usage
    counted = None if usage is None else usage.prompt()
    if placement is None or usage is None or counted is None or not request.blocks:
        return
    cached, to = usage.cached(), exchange.destination
    if to is not None and exchange.request is not None and not to.model.has_shapes:
        # How large a block is in tokens decides how many a replica holds.
        told, size = to.model.bytes_per_token, exchange.request.prompt_bytes
        exchange.proxy.fleet.ratios.learn(to.model.name, told, size, counted)
    attempt.pool.note_counted(
        request, replica, placement, prompt_tokens=counted, cached_tokens=cached
    )
    if replica.cache.view is not None and attempt.first_token_at is not None:
        replica.cache.view.note_ended(
            Ended(
                blocks=request.blocks,
                prompt_bytes=exchange.canonical_bytes,
                prompt_tokens=counted,
                cached_tokens=0 if cached is None and replica.cache.tells_cached else cached,
                sent_at=attempt.started_at,
                first_token_at=attempt.first_token_at,
            )
        )


def _tokens(exchange: HeldRequest) -> tuple[int, int, int, bool]:
    """Give prompt, cached and output tokens, and whether they are estimated."""
    attempt, destination = exchange.attempt, exchange.destination
    transcript = exchange.transcript
    earlier = 0 if transcript is None else transcript.earlier_tokens
    if attempt is None or destination is None:
        return 0, 0, 0, False
    answer = attempt.answer
    if answer is None:
        return (destination.prompt_tokens, 0, earlier, True) if earlier else (0, 0, 0, False)
    usage = answer.usage
    if usage is not None and usage.prompt() is not None:
        guessed = transcript is not None and not transcript.is_exact
        return usage.prompt() or 0, usage.cached() or 0, usage.output() or 0, guessed
    if not answer.has_begun or answer.status != _OK:
        return 0, 0, 0, False
    return destination.prompt_tokens, 0, _estimated_output(attempt, exchange), True


def _estimated_output(attempt: Attempt, exchange: HeldRequest) -> int:
    answer = attempt.answer
    if answer is None or not exchange.generates:
        return 0
    return answer.events or answer.size_bytes // _ANSWER_BYTES_PER_TOKEN
