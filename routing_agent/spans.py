"""Records of requests as OpenTelemetry spans in OTLP's JSON form. Pure.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: ids in hex, times as text in
nanoseconds. One server span a request; below it the waits and the attempts, below these prefill and
decode. `gen_ai.*` follows the semantic conventions of generative AI.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

import xxhash

from routing_agent import __version__
from routing_agent.wire import AttemptRecord, RequestRecord, StageRecord

_INTERNAL: Final = 1
_SERVER: Final = 2
_CLIENT: Final = 3
_ERROR: Final = {"code": 2}
_FAILED_FROM: Final = 500
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}

Span = dict[str, Any]


def export_request(records: Iterable[RequestRecord], *, service: str) -> dict[str, Any]:
    """Give the body of one export call."""
    resource = {
        "service.name": service,
        "service.version": __version__,
        "host.name": socket.gethostname(),
    }
    spans = [span for record in records for span in spans_of(record)]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "signalbox", "version": __version__}, "spans": spans}
                ],
            }
        ]
    }


def spans_of(record: RequestRecord) -> list[Span]:
    """Give a request's spans, the server's first."""
    return [_server_span(record), *_inner_spans(record)]


def _server_span(record: RequestRecord) -> Span:
    span = _span(record, f"POST {record.path}", _SERVER, record.received_at, record.e2e_s)
    span["spanId"] = record.span_id
    if record.parent_span_id:
        span["parentSpanId"] = record.parent_span_id
    else:
        del span["parentSpanId"]
    span["attributes"] = _attributes(
        {
            "http.request.method": "POST",
            "http.route": record.path,
            "http.response.status_code": record.status,
            "error.type": record.error or None,
            "gen_ai.operation.name": _OPERATIONS.get(record.path),
            "gen_ai.request.model": record.model or None,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "signalbox.request_id": record.request_id,
            "signalbox.tenant": record.tenant,
            "signalbox.pool": record.decision.pool,
            "signalbox.version": record.decision.version,
            "signalbox.policy": record.decision.policy,
            "signalbox.route": record.decision.route,
            "signalbox.route_reason": record.decision.reason,
            "signalbox.kept": record.kept,
            "signalbox.tokens_estimated": record.estimated,
            "signalbox.cached_input_tokens": record.cached_prompt_tokens,
            "signalbox.ttft_s": record.ttft_s,
        }
    )
    if record.status >= _FAILED_FROM:
        span["status"] = _ERROR | {"message": record.detail or record.error}
    return span


def _inner_spans(record: RequestRecord) -> Iterator[Span]:
    attempts = iter(record.attempts)
    parent = record.span_id
    for number, stage in enumerate(record.stages):
        if stage.stage == "QUEUED":
            yield _stage_span(record, stage, number, record.span_id)
        elif stage.stage == "BOUND":
            attempt = next(attempts, None)
            if attempt is not None:
                parent = attempt.span_id
                yield _attempt_span(record, attempt)
        elif stage.stage in ("PREFILL", "DECODE"):
            yield _stage_span(record, stage, number, parent)


def _stage_span(record: RequestRecord, stage: StageRecord, number: int, parent: str) -> Span:
    name = "queue" if stage.stage == "QUEUED" else stage.stage.lower()
    span = _span(record, name, _INTERNAL, stage.at, stage.duration_s)
    span["spanId"] = f"{xxhash.xxh3_64_intdigest(f'{record.uid}/{number}'.encode()) or 1:016x}"
    span["parentSpanId"] = parent
    span["attributes"] = _attributes(
        {"signalbox.estimated": stage.estimated, "signalbox.reason": stage.reason or None}
    )
    return span


def _attempt_span(record: RequestRecord, attempt: AttemptRecord) -> Span:
    operation = _OPERATIONS.get(record.path, "attempt")
    name = f"{operation} {record.model}".strip()
    span = _span(record, name, _CLIENT, attempt.at, attempt.duration_s)
    span["spanId"] = attempt.span_id
    is_good = attempt.outcome == "good"
    span["attributes"] = _attributes(
        {
            "gen_ai.operation.name": _OPERATIONS.get(record.path),
            "gen_ai.request.model": record.model or None,
            "error.type": None if is_good else attempt.outcome,
            "signalbox.replica": attempt.replica,
            "signalbox.route": attempt.route,
            "signalbox.next": attempt.next or None,
        }
    )
    if not is_good and attempt.outcome != "left":
        span["status"] = _ERROR | {"message": attempt.reason}
    return span


def _span(record: RequestRecord, name: str, kind: int, at: float, duration_s: float) -> Span:
    return {
        "traceId": record.trace_id,
        "spanId": "",
        "parentSpanId": record.span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(at),
        "endTimeUnixNano": _nanoseconds(at + duration_s),
        "attributes": [],
    }


def _nanoseconds(seconds: float) -> str:
    return str(round(seconds * 1e6) * 1000)


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": k, "value": _value(v)} for k, v in values.items() if v is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
