"""Measured beside simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from bench.model.fitting import Fit
from bench.model.passed import Passed, median_of
from bench.model.scenarios import Scenario
from bench.model.simulating import simulate

MS, TOKENS = "ms", "tokens"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: the median over passes, between what they lay, and what the model says."""

    scenario: str
    figure: str
    unit: str
    measured: float | None
    low: float | None
    high: float | None
    simulated: float | None
    was_fitted: bool  # whether the profile was chosen by it: then it is no prediction

    @property
    def error(self) -> float | None:
        """By how much the model is off, as a share of what was measured."""
        if self.measured is None or self.simulated is None or not self.measured:
            return None
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True)
class Figure:
    """Something to compare."""

    name: str
    unit: str
    of: Callable[[Passed], float | None]


TTFT: Final = Figure("TTFT P50", MS, lambda p: _ms(p.ttft_s(0.5)))
TTFT_P90: Final = Figure("TTFT P90", MS, lambda p: _ms(p.ttft_s(0.9)))
TPOT: Final = Figure("TPOT P50", MS, lambda p: _ms(p.tpot_s(0.5)))
HITS: Final = Figure("cached tokens", TOKENS, lambda p: float(p.cached_tokens))
WAIT: Final = Figure("queue wait, mean", MS, lambda p: _ms(p.queue_wait_s))


def rows(
    fit: Fit,
    scenarios: Sequence[Scenario],
    figures: Callable[[Scenario], Sequence[tuple[Figure, bool]]],
    measured: Mapping[str, Sequence[Passed]],
) -> Iterator[Row]:
    """Compare the figures of each scenario; a figure comes with whether it was fitted to."""
    for scenario in scenarios:
        simulated = simulate(fit.profile, scenario, fit.outside_s)
        for figure, was_fitted in figures(scenario):
            yield _row(scenario, figure, was_fitted, simulated, measured[scenario.name])


def _row(
    scenario: Scenario,
    figure: Figure,
    was_fitted: bool,
    simulated: Passed,
    measured: Sequence[Passed],
) -> Row:
    found = [figure.of(one) for one in measured]
    known = [value for value in found if value is not None]
    return Row(
        scenario=scenario.name,
        figure=figure.name,
        unit=figure.unit,
        measured=median_of(found),
        low=min(known, default=None),
        high=max(known, default=None),
        simulated=figure.of(simulated),
        was_fitted=was_fitted,
    )


def as_text(fit: Fit, compared: Sequence[Row]) -> str:
    """Write the profile and the table."""
    lines = [f"{name:28} {_figure(value)}" for name, value in fit.told.items()]
    lines += ["", *_table(compared), "", *_off(compared)]
    return "\n".join(lines)


def _table(compared: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'scenario':24}{'figure':18}{'measured':>10}{'passes between':>20}"
        f"{'simulated':>11}{'off by':>9}"
    )
    for row in compared:
        between = f"{_cell(row.low)} to {_cell(row.high)}"
        yield (
            f"{row.scenario:24}{row.figure:18}{_cell(row.measured):>10}{between:>20}"
            f"{_cell(row.simulated):>11}{_share(row.error):>9}  {row.unit}"
            f"{', fitted' if row.was_fitted else ''}"
        )


def _off(compared: Sequence[Row]) -> Iterator[str]:
    for is_fitted, words in ((True, "fitted to"), (False, "predicted")):
        errors = [
            abs(row.error)
            for row in compared
            if row.was_fitted is is_fitted and row.error is not None
        ]
        if errors:
            errors.sort()
            yield (
                f"{len(errors)} figures {words}: off by {errors[len(errors) // 2]:.0%} at the "
                f"median, {errors[-1]:.0%} at most"
            )


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1000


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
