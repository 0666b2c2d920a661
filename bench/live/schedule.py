"""Which requests of a trace are sent, and when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from routing_agent.simulation.traces.model import Trace, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is taken of a trace."""

    speed: float = 1.0  # 2: arrivals come twice as fast
    minutes: float | None = None  # of the trace's own time, from its beginning
    share: float = 1.0  # of its sessions; a session is taken whole or not at all
    context_tokens: int | None = None  # longer requests, prompt and answer together, are left out
    seed: int = 0  # of the choice of sessions


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send, `at_s` seconds after the start."""

    at_s: float
    request: TraceRequest


@dataclass(frozen=True, slots=True)
class Schedule:
    """The requests to send in order of time, how long that takes, and what was left out."""

    requests: tuple[Planned, ...]
    duration_s: float
    left_out: Counter[str]


def schedule(trace: Trace, wanted: Selection) -> Schedule:
    """Choose the requests of a trace and set their times."""
    left_out: Counter[str] = Counter()
    chosen = tuple(_chosen(trace, wanted, left_out))
    span_s = trace.duration_s if wanted.minutes is None else wanted.minutes * 60
    return Schedule(chosen, min(span_s, trace.duration_s) / wanted.speed, left_out)


def _chosen(trace: Trace, wanted: Selection, left_out: Counter[str]) -> Iterator[Planned]:
    begin_s = trace.requests[0].at_s if trace.requests else 0.0
    for request in trace.requests:
        at_s = request.at_s - begin_s
        if wanted.minutes is not None and at_s >= wanted.minutes * 60:
            return
        reason = _reason_against(request, wanted)
        if reason:
            left_out[reason] += 1
        else:
            yield Planned(at_s / wanted.speed, request)


def _reason_against(request: TraceRequest, wanted: Selection) -> str:
    tokens = request.prompt_tokens + max(request.output_tokens, 1)
    if wanted.context_tokens is not None and tokens > wanted.context_tokens:
        return f"longer than {wanted.context_tokens:,} tokens"
    dice = random.Random(f"{wanted.seed}/{request.session}")
    return "not in the share" if wanted.share < 1 and dice.random() >= wanted.share else ""
