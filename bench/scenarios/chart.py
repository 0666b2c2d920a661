"""A scenario as a picture: times to the first token and moved sessions, over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.scenarios.figures import INTERVAL_S, Moment, Told
from bench.scenarios.plans import Times

WIDTH: Final = 760
HEIGHT: Final = 420
LEFT: Final = 56
RIGHT: Final = 744
# The panels' tops and bottoms.
TTFT: Final = (64, 262)
MOVES: Final = (304, 380)
COLOURS: Final = ("#1d4ed8", "#c2410c", "#6b7280")
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#374151}.t{font-size:15px;font-weight:600;"
    "fill:#111827}.g{stroke:#e5e7eb}.e{fill:#f3f4f6}path{fill:none;stroke-linejoin:round}"
    ".p99{stroke-width:2}.p50{stroke-width:1.5;stroke-dasharray:4 3}"
)
LEAST_S: Final = 0.05  # the scale of times begins here, and is logarithmic

Value = Callable[[Moment], float | None]


def svg(title: str, times: Times, told: Sequence[Told]) -> str:
    """Draw what each policy made of a scenario."""
    most_s = max((m.ttft_p99_s or 0.0 for one in told for m in one.moments), default=1.0)
    most_moves = max((m.moves for one in told for m in one.moments), default=1) or 1
    decades = math.log10(max(most_s, 1.0) * 1.2 / LEAST_S)

    def x(at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * at_s / times.over

    def seconds(value: float) -> float:
        share = math.log10(max(value, LEAST_S) / LEAST_S) / decades
        return TTFT[1] - (TTFT[1] - TTFT[0]) * min(share, 1.0)

    def moves(value: float) -> float:
        return MOVES[1] - (MOVES[1] - MOVES[0]) * value / most_moves

    parts = [
        *_frame(title, x(times.begins), x(times.ends)),
        *_grid(seconds, [s for s in (0.1, 1.0, 10.0, 100.0) if s < most_s * 1.2], " s"),
        *_grid(moves, [0, most_moves], ""),
        *_ticks(x, times),
        *_legend(told),
    ]
    for one, colour in zip(told, COLOURS, strict=False):
        parts += _line(one.moments, _p50, x, seconds, f'class="p50" stroke="{colour}"')
        parts += _line(one.moments, _p99, x, seconds, f'class="p99" stroke="{colour}"')
        parts += _line(one.moments, _moves, x, moves, f'class="p99" stroke="{colour}"')
    return "\n".join([*parts, "</svg>\n"])


def _p50(moment: Moment) -> float | None:
    return moment.ttft_p50_s


def _p99(moment: Moment) -> float | None:
    return moment.ttft_p99_s


def _moves(moment: Moment) -> float | None:
    return float(moment.moves)


def _frame(title: str, begins: float, ends: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    yield f'<style>{STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    yield f'<text class="t" x="{LEFT}" y="22">{escape(title)}</text>'
    for top, bottom in (TTFT, MOVES):
        size = f'y="{top}" width="{ends - begins:.1f}" height="{bottom - top}"'
        yield f'<rect class="e" x="{begins:.1f}" {size}/>'
    yield f'<text x="{LEFT}" y="{TTFT[0] - 6}">TTFT, P99 solid, P50 dashed (log)</text>'
    what = f"sessions moved in {INTERVAL_S:.0f} s"
    yield f'<text x="{LEFT}" y="{MOVES[0] - 6}">{what}</text>'


def _grid(y: Callable[[float], float], values: Iterable[float], unit: str) -> Iterator[str]:
    for value in values:
        at = y(value)
        yield f'<line class="g" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}{unit}</text>'


def _ticks(x: Callable[[float], float], times: Times) -> Iterator[str]:
    for at_s in range(0, int(times.over) + 1, 60):
        yield f'<text x="{x(at_s):.1f}" y="{MOVES[1] + 18}" text-anchor="middle">{at_s} s</text>'


def _legend(told: Sequence[Told]) -> Iterator[str]:
    for place, (one, colour) in enumerate(zip(told, COLOURS, strict=False)):
        at = 400 + place * 122
        yield f'<path class="p99" stroke="{colour}" d="M{at} 18h18"/>'
        yield f'<text x="{at + 22}" y="22">{escape(one.policy)}</text>'


def _line(
    moments: Sequence[Moment],
    value: Value,
    x: Callable[[float], float],
    y: Callable[[float], float],
    look: str,
) -> Iterator[str]:
    known = [(m.at_s + INTERVAL_S / 2, value(m)) for m in moments]
    points = [f"{x(at):.1f} {y(v):.1f}" for at, v in known if v is not None]
    if points:
        yield f'<path {look} d="M{"L".join(points)}"/>'
