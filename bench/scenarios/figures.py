"""What a scenario came to: times to the first token and sessions that moved, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from bench.scenarios.plans import Course, Times
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.results import percentile, work_of

INTERVAL_S: Final = 10.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One interval, by when its requests came. Seconds; `null` where nobody came."""

    at_s: float  # where it begins
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    hit_rate: float | None
    moves: int  # sessions that went elsewhere than at their turn before


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a scenario as a whole."""

    requests: int
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    hit_rate: float | None
    moves: int
    work_max_mean: float | None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy made of a scenario."""

    policy: str
    steady: Part  # from a third of the time before the event to its begin
    event: Part
    after: Part
    shed: int
    hot_on: int | None  # replicas that computed the marked requests' common text, if there is one
    moments: tuple[Moment, ...]


def told(policy: str, course: Course, times: Times, flights: Sequence[Flight]) -> Told:
    """Sum up a replay."""
    moved = moves_of(flights)
    parts = [
        _part(course, _between(flights, begin, end), moved)
        for begin, end in (
            (times.begins / 3, times.begins),
            (times.begins, times.ends),
            (times.ends, times.over),
        )
    ]
    starts = [INTERVAL_S * n for n in range(int(times.over / INTERVAL_S))]
    return Told(
        policy=policy,
        steady=parts[0],
        event=parts[1],
        after=parts[2],
        shed=sum(flight.engine is None for flight in flights),
        hot_on=_hot_on(course, flights),
        moments=tuple(_moment(at, _between(flights, at, at + INTERVAL_S), moved) for at in starts),
    )


def moves_of(flights: Sequence[Flight]) -> frozenset[int]:
    """Give the numbers of the flights that took their session to another replica."""
    last: dict[int, int] = {}
    moved = set()
    for flight in flights:
        if flight.engine is not None:
            session = flight.request.session
            if last.get(session, flight.engine) != flight.engine:
                moved.add(flight.number)
            last[session] = flight.engine
    return frozenset(moved)


def _between(flights: Sequence[Flight], begin_s: float, end_s: float) -> list[Flight]:
    return [flight for flight in flights if begin_s <= flight.request.at_s < end_s]


def _ttfts(flights: Sequence[Flight]) -> list[float]:
    return sorted(flight.ttft_s for flight in flights if flight.ttft_s is not None)


def _hits(flights: Sequence[Flight]) -> float | None:
    tokens = sum(flight.request.prompt_tokens for flight in flights)
    return sum(flight.cached_tokens for flight in flights) / tokens if tokens else None


def _moment(at_s: float, flights: Sequence[Flight], moved: frozenset[int]) -> Moment:
    ttfts = _ttfts(flights)
    return Moment(
        at_s=at_s,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        hit_rate=_hits(flights),
        moves=sum(flight.number in moved for flight in flights),
    )


def _part(course: Course, flights: Sequence[Flight], moved: frozenset[int]) -> Part:
    ttfts, work = _ttfts(flights), work_of(flights, course.replicas)
    return Part(
        requests=len(flights),
        ttft_mean_s=sum(ttfts) / len(ttfts) if ttfts else None,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        hit_rate=_hits(flights),
        moves=sum(flight.number in moved for flight in flights),
        work_max_mean=max(work) * len(work) / sum(work) if sum(work) else None,
    )


def _hot_on(course: Course, flights: Sequence[Flight]) -> int | None:
    hot = [f for f in flights if f.request.session in course.marked and f.engine is not None]
    firsts = {f.request.blocks[0] for f in hot}
    return len({f.engine for f in hot}) if len(firsts) == 1 else None
