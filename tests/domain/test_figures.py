"""Percentiles, memory arithmetic, URLs, retries of deliveries, errors."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import capacity, latency
from controlplane.domain.deliveries import is_due
from controlplane.domain.errors import Conflict, Invalid
from controlplane.domain.urls import checked_origin
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket

GIB, MIB, KIB = 1024**3, 1024**2, 1024
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def histogram(samples):
    counts: dict[int, int] = {}
    for sample in samples:
        bucket = latency_bucket(sample)
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


@given(
    st.lists(st.floats(0.0011, 600), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_a_percentile_is_within_five_percent_of_the_true_one(samples, q):
    true = sorted(samples)[max(1, math.ceil(q * len(samples) - 1e-9)) - 1]
    assert latency.percentile(histogram(samples), q) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("empty", [{}, {3: 0, 9: 0}, {3: -2}])
def test_without_samples_there_is_no_percentile(empty):
    told = latency.stats(empty)
    assert (told.count, told.p50_s, told.p95_s, told.p99_s) == (0, None, None, None)


def test_samples_beyond_the_last_bound_count_as_that_bound():
    assert latency.percentile({latency.OVERFLOW: 5}, 0.95) == LATENCY_BOUNDS_S[-1]
    assert latency.percentile({latency.OVERFLOW + 7: 1}, 0.5) == LATENCY_BOUNDS_S[-1]


def test_one_sample_is_every_percentile_and_the_first_bucket_is_its_bound():
    assert latency.stats({0: 1}).p99_s == LATENCY_BOUNDS_S[0]


def test_old_peaks_do_not_outweigh_new_samples_of_the_window():
    window = histogram([0.001] * 6000)  # deltas only: what was counted before is not in it
    assert latency.percentile(window, 0.95) == pytest.approx(0.001, rel=0.05)


def test_histograms_add_up():
    assert latency.merged([{1: 2, 3: 1}, {3: 4}]) == {1: 2, 3: 5}


def test_kv_cache_and_weights_of_known_models():
    qwen = capacity.kv_bytes_per_token(layers=28, kv_heads=4, head_dim=128, dtype="bf16")
    assert qwen == 56 * KIB
    assert qwen * 8192 == 448 * MIB
    llama = capacity.kv_bytes_per_token(layers=32, kv_heads=32, head_dim=128, dtype="fp16")
    assert llama == 512 * KIB
    assert llama * 4096 == 2 * GIB
    weights = capacity.weight_bytes(parameters=7_600_000_000, dtype="bf16")
    assert round(weights / GIB, 1) == 14.2
    assert capacity.weight_bytes(parameters=3, dtype="int4") == 2


def test_replicas_for_a_peak_with_a_buffer():
    assert capacity.replicas_needed(peak=200, per_replica=50, buffer_ratio=0.3) == 6
    assert capacity.replicas_needed(peak=200, per_replica=50, buffer_ratio=0.25) == 5


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("http://[::1]:9001", "http://[::1]:9001"),
        ("http://[0:0:0:0:0:0:0:1]:9001/", "http://[::1]:9001"),
        ("HTTP://Engine-1.Example:8000", "http://engine-1.example:8000"),
        ("https://engine", "https://engine:443"),
        ("http://10.0.0.7", "http://10.0.0.7:80"),
    ],
)
def test_an_address_has_one_spelling(text, kept):
    assert checked_origin(text) == kept


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://::1:9001", "without brackets"),
        ("http://[::1", "is not a URL"),
        ("http://[fe80::zz]:1", "URL"),
        ("http://[v1.x]:1", "IPv6"),
        ("ftp://a:1", "does not start with http"),
        ("a:1", "does not start with http"),
        ("http://u:p@a:1", "credential"),
        ("http://a:1/v1", "more than a host and port"),
        ("http://a:1?x=1", "more than a host and port"),
        ("http://:9001", "no usable host"),
        ("http://-a:1", "no usable host"),
        ("http://a:0", "port 0"),
        ("http://a:99999", "is not a URL"),
        ("http://a b:1", "spaces"),
        ("http://a:1\n", "spaces"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_wrong(text, told):
    with pytest.raises(Invalid, match="(?i)" + told) as caught:
        checked_origin(text, field="admin_url")
    assert caught.value.field == "admin_url"


def test_a_live_agent_is_pushed_to_at_once_and_a_silent_one_ever_more_rarely():
    def due(attempts, after_s, live=False):
        first = NOW - timedelta(seconds=after_s)
        return is_due(attempts=attempts, first_tried_at=first, is_live=live, now=NOW)

    assert due(9, 0, live=True)
    assert is_due(attempts=0, first_tried_at=None, is_live=False, now=NOW)
    assert not due(1, 9)
    assert due(1, 10)
    assert not due(50, 319)
    assert due(50, 320)


def test_an_error_has_a_stable_code_a_status_and_may_name_its_field():
    error = Conflict("There is already a pool 'chat'.", field="slug")
    assert (error.code, error.status, error.field) == ("conflict", 409, "slug")
    assert Conflict("x", code="stale_version").code == "stale_version"
