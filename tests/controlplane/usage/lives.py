"""Lives of requests as agents tell them, with defaults."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from routing_agent import wire

_numbers = count(1)


def life(request_id: str = "req-1", **given: Any) -> wire.RequestRecord:
    """A sampled stream that went well, received now, through replica rpl-1 of pool chat."""
    number = next(_numbers)
    at = given.get("received_at", time.time())
    defaults: dict[str, Any] = {
        "number": number,
        "uid": f"{number:032x}",
        "received_at": at,
        "trace_id": f"{number:032x}"[::-1],
        "span_id": "a" * 16,
        "tenant": "acme",
        "api_key": "key-1",
        "model": "m",
        "path": "/v1/chat/completions",
        "stream": True,
        "decision": wire.DecisionRecord(
            pool="chat",
            version="v1",
            policy="least_tokens",
            replica="rpl-1",
            route="load",
            reason="fewest tokens in flight",
            candidates=(
                wire.Candidate(replica="rpl-1", score=513.0, terms={"inflight_tokens": 0.0}),
                wire.Candidate(replica="rpl-2", score=900.0, excluded="breaker open"),
            ),
            candidates_total=2,
        ),
        "stages": (
            wire.StageRecord(stage="RECEIVED", at=at, duration_s=0.001),
            wire.StageRecord(stage="BOUND", at=at, duration_s=0.002, reason="to rpl-1"),
            wire.StageRecord(stage="PREFILL", at=at, duration_s=0.2, estimated=True),
            wire.StageRecord(stage="DECODE", at=at, duration_s=0.8),
            wire.StageRecord(stage="DONE", at=at),
        ),
        "attempts": (wire.AttemptRecord(replica="rpl-1", at=at, duration_s=1.0, route="load"),),
        "prompt_tokens": 512,
        "output_tokens": 64,
        "ttft_s": 0.203,
        "e2e_s": 1.003,
    }
    return wire.RequestRecord(request_id=request_id, **(defaults | given))


def failure(request_id: str = "req-bad", **given: Any) -> wire.RequestRecord:
    """A request that failed at one replica and then for good, without candidates."""
    at = given.get("received_at", time.time())
    defaults: dict[str, Any] = {
        "kept": "failure",
        "status": 502,
        "error": "engine_failed",
        "detail": "the engine answered 500",
        "prompt_tokens": 0,
        "output_tokens": 0,
        "ttft_s": None,
        "decision": wire.DecisionRecord(
            pool="chat", version="v1", policy="least_tokens", replica="rpl-2", route="retry",
            reason="the only replica that may take it", candidates_total=2,
        ),
        "stages": (
            wire.StageRecord(stage="RECEIVED", at=at),
            wire.StageRecord(stage="BOUND", at=at, duration_s=0.001),
            wire.StageRecord(stage="PREFILL", at=at, duration_s=0.05, estimated=True),
            wire.StageRecord(
                stage="QUEUED", at=at, duration_s=0.1, reason="pause before attempt 2"
            ),
            wire.StageRecord(stage="BOUND", at=at, duration_s=0.001),
            wire.StageRecord(stage="PREFILL", at=at, duration_s=0.05, estimated=True),
            wire.StageRecord(stage="FAILED", at=at, reason="engine_failed"),
        ),
        "attempts": tuple(
            wire.AttemptRecord(
                replica=replica, at=at, duration_s=0.05, outcome="engine_error",
                reason="the engine answered 500", next=following,
            )
            for replica, following in
            (("rpl-1", "after engine error"), ("rpl-2", "2 attempts made"))
        ),
        "e2e_s": 0.202,
    }  # fmt: skip
    return life(request_id, **(defaults | given))
