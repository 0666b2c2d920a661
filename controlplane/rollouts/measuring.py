"""What a pool did since a moment, from the telemetry stores: figures that can be compared.

Up to a quarter of an hour the recent store's 5 s steps are added up, up to an hour its minutes;
then roll-ups, which are up to two minutes behind. Nothing newer than half a minute is no data:
agents report every two seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry import history, recent, rolling
from controlplane.telemetry.rolling import POOL
from controlplane.telemetry.snapshots import MINUTE_S, NoData, Window

FINE_S: Final = 900.0
RECENT_S: Final = 3300.0  # the recent store forgets after an hour
FRESH_S: Final = 30.0
ROLLED_FRESH_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A pool's figures over a stretch, and where they are from."""

    figures: Figures
    source: str


def measure(pool: str, since: float, now: float) -> Measured | NoData:
    """Give what `pool` did from `since` on (Unix seconds), or why that is not known."""
    if now - since <= RECENT_S:
        base = recent.STEP_S if now - since <= FINE_S else MINUTE_S
        return _recent(pool, since, now, base)
    return _rolled(pool, since, now)


def measure_between(pool: str, since: float, until: float, now: float) -> Measured | NoData:
    """Give what a pool did in a stretch that is over, by the store that knows more of it.

    The recent store may have been emptied meanwhile; roll-ups have whole minutes only.
    """
    rolled = _rolled_between(pool, since, until)
    if now - since > RECENT_S:
        return rolled
    base = recent.STEP_S if now - since <= FINE_S else MINUTE_S
    found = _summed(pool, *_whole(since, until, base), base)
    if isinstance(rolled, NoData):
        return found
    if isinstance(found, NoData) or found.figures.requests < rolled.figures.requests:
        return rolled
    return found


def _rolled_between(pool: str, since: float, until: float) -> Measured | NoData:
    window = _window(since, until, MINUTE_S)
    if window is None:
        return NoData(f"that of pool '{pool}' lasted less than a minute, and is long ago")
    frames = [f for f in history.frames(POOL, pool, window) if f is not None]
    if not frames:
        return NoData(f"no roll-ups of pool '{pool}' of that time")
    return Measured(figures=rollups.over_time(frames), source=history.source_of(window))


def _recent(pool: str, since: float, now: float, base: int) -> Measured | NoData:
    found = _summed(pool, *_edges(since, now, base), base)
    if isinstance(found, NoData):
        return found
    fresh = recent.store().pool_steps(pool, *_edges(now - FRESH_S, now, recent.STEP_S))
    if isinstance(fresh, NoData):
        return fresh
    if all(step is None for step in fresh):
        return NoData(f"nothing was reported of pool '{pool}' for {FRESH_S:.0f} s")
    return found


def _summed(pool: str, start: int, end: int, base: int) -> Measured | NoData:
    steps = recent.store().pool_steps(pool, start, end, base)
    if isinstance(steps, NoData):
        return steps
    known = [rolling.pool_figures(step, base) for step in steps if step is not None]
    if not known:
        return NoData(f"nothing was reported of pool '{pool}' in that time")
    figures = rollups.over_time(known)
    return Measured(figures=figures, source=f"recent store, {base} s steps")


def _rolled(pool: str, since: float, now: float) -> Measured | NoData:
    window = _window(since, now, MINUTE_S)
    frames = [] if window is None else history.frames(POOL, pool, window)
    newest = next((i for i, f in enumerate(reversed(frames)) if f is not None), None)
    if window is None or newest is None or newest * MINUTE_S > ROLLED_FRESH_S:
        return NoData(f"no fresh roll-ups of pool '{pool}'")
    figures = rollups.over_time(f for f in frames if f is not None)
    return Measured(figures=figures, source=history.source_of(window))


def _edges(since: float, until: float, base: int) -> tuple[int, int]:
    """Give the steps of a stretch that ends now: the one under way counts, its samples are in."""
    start, end = _whole(since, until, base)
    return start, end + base


def _whole(since: float, until: float, base: int) -> tuple[int, int]:
    """Give the whole steps within a stretch."""
    return math.ceil(since / base) * base, math.floor(until / base) * base


def _window(since: float, until: float, base: int) -> Window | None:
    start, end = _whole(since, until, base)
    if end <= start:
        return None
    return Window(end_s=end, step_s=base, steps=(end - start) // base, span_s=base, base_s=base)
