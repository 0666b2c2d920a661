"""The metrics page of a simulated engine: vLLM's names, types, buckets and `_created` series."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

# Bucket bounds as vLLM 0.32 publishes them.
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
PER_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = tuple(float(2**i) for i in range(15) if i not in (1, 2))


def token_bounds(longest: int) -> tuple[float, ...]:
    """Give vLLM's 1, 2, 5 bounds up to the longest request."""
    steps = (m * 10.0**e for e in range(12) for m in (1, 2, 5))
    return tuple(bound for bound in steps if bound <= longest)


class Histogram:
    """A cumulative histogram of one quantity."""

    __slots__ = ("bounds", "counts", "help", "name", "sum")

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.help = help_text
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, labels: str, created: float) -> Iterator[str]:
        """Give the exposition lines."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{{labels},le="{bound}"}} {total}.0'
        yield f"{self.name}_count{{{labels}}} {total}.0"
        yield f"{self.name}_sum{{{labels}}} {self.sum!r}"
        yield from gauge(f"{self.name}_created", self.help, [(labels, created)])


def gauge(name: str, help_text: str, series: Iterable[tuple[str, float]]) -> Iterator[str]:
    """Give the exposition lines of a gauge, one for each set of labels."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    for labels, value in series:
        yield f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"


def counter(
    name: str, help_text: str, series: Iterable[tuple[str, float]], created: float
) -> Iterator[str]:
    """Give the exposition lines of a counter `name`_total and its `_created` gauge."""
    series = list(series)
    yield f"# HELP {name}_total {help_text}"
    yield f"# TYPE {name}_total counter"
    for labels, value in series:
        yield f"{name}_total{{{labels}}} {float(value)!r}"
    yield from gauge(f"{name}_created", help_text, [(labels, created) for labels, _ in series])


def label_text(**labels: str) -> str:
    """Write labels the way the exposition format wants them, in alphabetical order."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
