"""A canary against stable: what is proven fails, what is likely waits, equal versions pass."""

from __future__ import annotations

import random

import pytest

from controlplane.domain import analysis
from controlplane.domain.analysis import Verdict, analyse
from controlplane.domain.rollups import Figures
from routing_agent.wire import latency_bucket


def figures(n, *, slower=1.0, failed=0, seed=1, streams=True):
    """A version's figures: lognormal latencies with a tail of P99 = 3.2 x the median."""
    chance = random.Random(seed)
    ttft, tpot = {}, {}
    for _ in range(n if streams else 0):
        for table, middle in ((ttft, 0.2), (tpot, 0.02)):
            bucket = latency_bucket(middle * slower * chance.lognormvariate(0, 0.5))
            table[bucket] = table.get(bucket, 0) + 1
    return Figures(covered_s=60, requests=n, failed=failed, ttft=ttft, tpot=tpot)


def judge(canary, stable, *, limit=0.1, least=200):
    return analyse(canary, stable, limit=limit, min_requests=least)


def test_a_version_twice_as_slow_fails_and_the_reason_names_both_figures():
    found = judge(figures(500, slower=2.0, seed=2), figures(2000))
    assert found.verdict is Verdict.FAILED
    assert "TTFT P99" in found.reason
    assert "more than 10 % worse is proven" in found.reason
    metric = found.metrics[0]
    assert metric.canary is not None
    assert metric.stable is not None
    assert metric.canary > metric.stable


def test_it_fails_before_it_has_its_least_requests():
    found = judge(figures(80, slower=3.0, seed=3), figures(2000), least=1000)
    assert found.verdict is Verdict.FAILED
    assert not found.has_enough


@pytest.mark.parametrize("n", [200, 1000, 3000])
def test_equal_versions_never_fail_and_nearly_always_pass(n):
    looks = [judge(figures(n, seed=2 * i), figures(4 * n, seed=2 * i + 1)) for i in range(20)]
    assert all(look.verdict is not Verdict.FAILED for look in looks)
    assert sum(look.verdict is Verdict.SUCCESSFUL for look in looks) >= 19


def test_a_canary_that_is_faster_passes():
    found = judge(figures(300, slower=0.5, seed=4), figures(900))
    assert found.verdict is Verdict.SUCCESSFUL
    assert "not worse by more than 10 %" in found.reason


def test_what_is_likely_but_not_proven_waits():
    found = judge(figures(200, slower=1.6, seed=7), figures(1000))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "likely, not proven" in found.reason


def test_too_few_requests_are_inconclusive_however_good_they_look():
    found = judge(figures(199, seed=5), figures(1000))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "199 of at least 200 requests" in found.reason


def test_too_few_samples_of_a_latency_are_not_compared():
    found = judge(figures(20, slower=9.0), figures(1000), least=10)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "from 50 on they are compared" in found.reason


def test_no_request_is_no_data_and_no_pass():
    found = judge(Figures(covered_s=60), figures(1000))
    assert (found.verdict, found.has_data) == (Verdict.INCONCLUSIVE, False)
    assert "the clock stands still" in found.reason


def test_stable_without_a_request_gives_nothing_to_compare_with():
    found = judge(figures(300), Figures(covered_s=60))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "nothing to compare with" in found.reason


def test_versions_that_do_not_stream_are_judged_by_their_errors_alone():
    found = judge(figures(300, streams=False), figures(900, streams=False))
    assert found.verdict is Verdict.SUCCESSFUL
    assert "neither version streams" in found.reason
    assert found.metrics[0].canary is None


def test_errors_fail_once_they_are_proven():
    assert judge(figures(100, failed=10), figures(900)).verdict is Verdict.FAILED
    assert judge(figures(300, failed=2), figures(900)).verdict is Verdict.SUCCESSFUL
    unsure = judge(figures(300, failed=6, seed=3), figures(900, failed=2))
    assert unsure.verdict is Verdict.INCONCLUSIVE


def test_errors_that_both_have_are_no_regression():
    assert judge(figures(500, failed=25), figures(2000, failed=100)).verdict is Verdict.SUCCESSFUL


def test_latencies_beyond_the_last_bucket_of_stable_prove_nothing_against_the_canary():
    endless = Figures(covered_s=60, requests=500, ttft={141: 500})
    found = judge(Figures(covered_s=60, requests=500, ttft={141: 500}), endless)
    assert found.verdict is Verdict.SUCCESSFUL


def test_a_canary_of_two_fast_samples_has_no_lower_bound_yet():
    tiny = Figures(covered_s=60, requests=60, ttft={1: 60})
    found = judge(tiny, figures(500), least=60)
    assert found.metrics[0].verdict is Verdict.SUCCESSFUL


def test_words_for_what_is_not_known():
    assert analysis._ms(None) == "—"
