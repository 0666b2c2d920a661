"""What few samples prove: bounds that are no guess about tails."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import order_bounds
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket


def histogram(latencies):
    found: dict[int, int] = {}
    for one in latencies:
        bucket = latency_bucket(one)
        found[bucket] = found.get(bucket, 0) + 1
    return found


def test_of_200_samples_the_p99_is_proven_to_lie_above_the_ninth_largest():
    # Binomial(200, 0.01): more than 8 above the quantile has a chance below 1 in 1,000.
    lower, upper = order_bounds.ranks(200, 0.99, 3.09)
    assert (lower, upper) == (9, 0)


def test_few_samples_prove_nothing():
    assert order_bounds.ranks(1, 0.99, 3.09) == (2, 0)
    assert order_bounds.at_least_s(histogram([1.0]), 0.99, 3.09) is None
    assert order_bounds.at_least_s({}, 0.99, 3.09) is None
    assert order_bounds.at_most_s({}, 0.99, 3.09) is None


def test_the_exact_and_the_normal_bound_meet():
    exact = order_bounds.ranks(order_bounds.EXACT_UP_TO, 0.99, 3.09)
    normal = order_bounds.ranks(order_bounds.EXACT_UP_TO + 1, 0.99, 3.09)
    assert normal == pytest.approx(exact, abs=4)


def test_many_samples_bound_the_quantile_from_both_sides():
    chance = random.Random(1)
    found = histogram(chance.lognormvariate(0, 0.5) for _ in range(20_000))
    true_p99 = 3.2  # e^(0.5 * 2.326)
    low = order_bounds.at_least_s(found, 0.99, 3.09)
    high = order_bounds.at_most_s(found, 0.99, 3.09)
    assert low is not None
    assert high is not None
    assert true_p99 / 1.35 < low < true_p99 < high < true_p99 * 1.35


def test_samples_beyond_the_last_bucket_have_no_upper_bound_but_a_lower_one():
    beyond = {len(LATENCY_BOUNDS_S): 500}
    assert order_bounds.at_most_s(beyond, 0.99, 1.0) is None
    assert order_bounds.at_least_s(beyond, 0.99, 1.0) == LATENCY_BOUNDS_S[-1]


def test_the_first_bucket_reaches_down_to_zero():
    assert order_bounds.at_least_s({0: 500}, 0.99, 1.0) == 0.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=80))
def test_the_bounds_are_in_order(latencies):
    found = histogram(latencies)
    low = order_bounds.at_least_s(found, 0.99, 1.0)
    high = order_bounds.at_most_s(found, 0.99, 1.0)
    assert high is not None
    assert low is None or low <= high


def test_a_share_is_bounded_as_wilson_has_it():
    low, high = order_bounds.share_bounds(0, 2000, 3.09)
    assert low == pytest.approx(0.0)
    assert high == pytest.approx(0.00475, abs=1e-4)
    assert order_bounds.share_bounds(3, 3, 3.09)[0] > 0.2
    assert order_bounds.share_bounds(0, 0, 3.09) == (0.0, 1.0)
