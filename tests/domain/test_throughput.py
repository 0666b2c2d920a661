"""Throughput is compared with the same hour of other days, at equal demand."""

from __future__ import annotations

import pytest

from controlplane.domain.rollups import Figures
from controlplane.domain.throughput import Recent, compared, usual


def hour(tokens_per_s: float, requests: int = 3600, running: int | None = 10) -> Figures:
    load_s = 3600 if running is not None else 0
    return Figures(
        covered_s=3600,
        requests=requests,
        output_tokens=int(tokens_per_s * 3600),
        load_s=load_s,
        running_s=(running or 0) * load_s,
    )


USUAL = usual([hour(900), hour(1000), hour(9000)])


def now(tokens_per_s: float, requests: int, running: int | None = None, **given) -> Recent:
    load_s = 300 if running is not None else 0
    figures = Figures(
        covered_s=300,
        requests=requests,
        output_tokens=int(tokens_per_s * 300),
        load_s=load_s,
        running_s=(running or 0) * load_s,
    )
    return Recent(now=figures, age_s=0, **({"baseline": USUAL} | given))


def test_the_usual_is_the_median_so_that_one_day_does_not_count():
    assert USUAL.output_tokens_per_s == 1000
    assert usual([hour(1, running=None)]).running is None


@pytest.mark.parametrize(
    ("told", "share"),
    [
        (now(1000, 300), 1.0),
        (now(600, 300), 0.6),  # the same demand, less done
        (now(500, 150), 1.0),  # half the demand, half done
        (now(2000, 600), 2.0),  # more demand counts as the usual
        (now(500, 150, running=10), 0.5),  # fewer ended, but as many under way: it is slow
    ],
)
def test_it_is_compared_at_equal_demand(told, share):
    ratio, text = compared(told)
    assert ratio == pytest.approx(share)
    assert "1000 are usual" in text


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (now(1, 1), "too little to compare"),
        (now(1, 300, baseline=None), "no day of the past seven"),
        (now(1, 300, baseline=usual([hour(0)])), "no day of the past seven"),
        (Recent(now=Figures(), age_s=0, baseline=USUAL), "nothing was reported"),
    ],
)
def test_without_something_to_compare_there_is_no_figure(told, why):
    ratio, text = compared(told)
    assert ratio is None
    assert why in text
