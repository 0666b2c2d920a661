"""What if there were more replicas, or fewer? A pool's busiest minutes over simulated fleets.

The fleet is that of `python -m routing_agent replay`: the code that routes live over engines that
compute in their own time. Roll-ups hold counts and sums, not requests; so arrivals are spread over
each minute, lengths are that minute's means, and no prefix is shared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from controlplane.domain.amounts import counted
from controlplane.domain.capacity import BYTES_PER_VALUE
from controlplane.domain.planning import Plan
from controlplane.domain.planning_inputs import ENTERED
from controlplane.telemetry import peaks
from controlplane.telemetry.peaks import Minute
from controlplane.telemetry.rolling import POOL
from routing_agent import hardware
from routing_agent.simulation.fleet_replay import FleetReplay, ReplayPlan
from routing_agent.simulation.profiles import Profile, derived
from routing_agent.simulation.results import answers_of, summarize
from routing_agent.simulation.traces.model import TraceRequest

MINUTES: Final = 10
KEPT: Final = timedelta(hours=48)  # as long as roll-ups by the minute are kept
REQUESTS_AT_MOST: Final = 1000  # less than a second of computing for each size of fleet
REPLICAS_AT_MOST: Final = 100
# How much faster or slower than recorded: beyond, lengths and rhythm would be another load's.
LEAST_FACTOR, MOST_FACTOR = 0.25, 20.0
UNPLANNED: Final = (1, 2, 4, 8)
_MODEL_FACTS: Final = ("parameters", "layers", "kv_heads", "head_size", "context_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How the minutes went with so many replicas; None where no request got so far."""

    replicas: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    shed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A replay for several sizes of a fleet, or what is missing for one."""

    points: tuple[Point, ...] = ()
    source: str = ""
    at: datetime | None = None  # when the minutes began
    missing: str = ""


def what_if(plan: Plan, *, pool: str | None, now: datetime) -> WhatIf:
    """Replay a pool's busiest minutes over fleets around the planned size."""
    values = {name: known.value for name, known in plan.inputs.items()}
    lacking = _lacking(values, pool)
    if lacking or pool is None:
        return WhatIf(missing=lacking)
    profile = derived(hardware.GPUS[values["gpu"]], _model(values))
    if profile is None:
        return WhatIf(missing="The KV cache would hold fewer than 16 384 tokens: too few to run.")
    minutes = peaks.busiest_minutes(
        POOL, pool, since=now - KEPT, minutes=MINUTES, requests_at_most=REQUESTS_AT_MOST
    )
    if not minutes:
        return WhatIf(
            missing=f"Pool {pool} had no request in the last 48 hours, or more than"
            f" {REQUESTS_AT_MOST} in its busiest minute; `python -m routing_agent replay` takes"
            f" any trace."
        )
    return _replayed(plan, pool, profile, minutes)


def _lacking(values: dict[str, Any], pool: str | None) -> str:
    if pool is None:
        return "Choose a pool: its busiest minutes are what is replayed."
    if "gpu" not in values:
        return "Name a GPU of the table: speeds of others are not known."
    if any(name not in values for name in _MODEL_FACTS):
        return "Name a model, or register the facts of the pool's version."
    if values["gpus_per_replica"] != 1:
        return "The simulation runs a replica on one GPU; enter 1 to replay that."
    if any(BYTES_PER_VALUE[values[name]] != 2 for name in ("weight_dtype", "kv_dtype")):
        return "The simulation knows speeds with 16-bit weights and KV cache only."
    return ""


def _model(values: dict[str, Any]) -> hardware.Model:
    return hardware.Model(
        parameters=int(values["parameters"]),
        layers=int(values["layers"]),
        kv_heads=int(values["kv_heads"]),
        head_size=int(values["head_size"]),
        context_tokens=int(values.get("longest_context_tokens", values["context_tokens"])),
        source="the plan's inputs",
    )


def _replayed(plan: Plan, pool: str, profile: Profile, minutes: list[Minute]) -> WhatIf:
    entered = _entered_peak(plan)
    factor = 1.0 if entered is None else entered / (max(m.requests for m in minutes) / 60)
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        return WhatIf(
            missing=f"The peak entered is {factor:.3g} times that of the minutes recorded; a replay"
            f" of them says something from {LEAST_FACTOR:g} to {MOST_FACTOR:g} times."
        )
    sizes = _sizes(plan)
    if max(sizes) > REPLICAS_AT_MOST:
        return WhatIf(missing=f"A page replays over at most {REPLICAS_AT_MOST} replicas.")
    trace = requests_of(minutes, factor=factor)
    squeezed = "" if entered is None else f", the busiest brought to {entered:.6g} requests/s"
    return WhatIf(
        points=tuple(_point(profile, trace, n) for n in sizes),
        source=f"{counted(len(trace), 'requests')} in the busiest {len(minutes)} min of pool {pool}"
        f" in the last 48 h{squeezed}; arrivals spread over each minute, lengths are its means, no"
        f" prefix is shared. Speeds are derived from data sheets: good for comparing, no promise.",
        at=minutes[0].at,
    )


def _entered_peak(plan: Plan) -> float | None:
    peak = plan.inputs.get("peak_requests_per_s")
    return float(peak.value) if peak is not None and peak.source == ENTERED else None


def _sizes(plan: Plan) -> tuple[int, ...]:
    wanted = plan.result("replicas")
    if not wanted:
        return UNPLANNED
    return tuple(n for n in range(int(wanted) - 2, int(wanted) + 3) if n > 0)


def requests_of(minutes: list[Minute], *, factor: float) -> list[TraceRequest]:
    """Make a trace of minutes, `factor` times as fast; the same minutes make the same trace."""
    chance = random.Random(0)  # noqa: S311 - not a secret
    made: list[TraceRequest] = []
    for minute in minutes:
        start_s = (minute.at - minutes[0].at).total_seconds()
        prompt = max(1, round(minute.prompt_tokens / max(1, minute.requests)))
        output = max(1, round(minute.output_tokens / max(1, minute.requests)))
        for at_s in sorted(start_s + 60 * chance.random() for _ in range(minute.requests)):
            one = TraceRequest(
                at_s=at_s / factor, prompt_tokens=prompt, output_tokens=output, session=len(made)
            )
            made.append(one)
    return made


def _point(profile: Profile, trace: list[TraceRequest], replicas: int) -> Point:
    flights = FleetReplay(ReplayPlan(replicas=replicas, profile=profile)).run(trace)
    result = summarize("", flights, replicas)
    return Point(
        replicas=replicas,
        ttft_p50_s=result.ttft_p50_s,
        ttft_p99_s=result.ttft_p99_s,
        tpot_p99_s=answers_of(flights).tpot_p99_s,
        shed=result.shed,
    )
