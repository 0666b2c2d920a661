"""What is counted, how it is told, and that nothing is lost or doubled."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from routing_agent import wire
from routing_agent.core.fleet import Fleet
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.metrics_page import TENANT_SERIES, render
from routing_agent.wire import LATENCY_BOUNDS_S, latency_bucket
from tests.agent.core.build import NOW, endpoint, fleet, pool, table

ODD = 'a"b\\c\nd'


CONTRACT = (
    "requests_total",
    "tenant_requests_total",
    "tenant_tokens_total",
    "ttft_seconds_bucket",
    "tpot_seconds_bucket",
    "e2e_seconds_bucket",
    "queue_wait_seconds_bucket",
    "stage_seconds_bucket",
    "inflight_requests",
    "inflight_tokens",
    "prompt_tokens_total",
    "cached_prompt_tokens_total",
    "output_tokens_total",
    "errors_total",
    "breaker_state",
    "ejections_total",
    "adapter_loaded",
    "route_decision_seconds_count",
    "retries_total",
    "shed_total",
    "table_epoch",
    "table_age_seconds",
    "gpu_utilization_ratio",
    "gpu_memory_total_bytes",
)


def record(**changes: object) -> FinishedRequest:
    fields = {
        "model": "m", "version": "1", "pool": "p",
        "prompt_tokens": 10, "output_tokens": 5, "ttft_s": 0.2, "tpot_s": 0.01, "e2e_s": 0.5,
        "connect_s": 0.001,
    }  # fmt: skip
    made = FinishedRequest("r", tenant="t", status=200, at=0.0)
    for name, value in (fields | changes).items():
        setattr(made, name, value)
    return made


def samples(metrics: Metrics, made: Fleet) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    text = render(metrics, made, now=NOW)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_metric_of_the_contract_is_there() -> None:
    """Section 3 of the architecture."""
    made = fleet(pool(endpoints=(endpoint("r", adapters=("l",)),)))
    made.replicas["r"].adapters.note_listed(("l",), NOW)
    metrics = Metrics()
    metrics.request_finished(record())
    metrics.retried(made.pools["p"].pool)
    metrics.shed(made.pools["p"].pool, "queue")
    metrics.table_applied_at = NOW - 5
    metrics.gpus = (wire.Gpu(index=0, model="x", memory_bytes=8, utilization_ratio=0.5),)
    names = set(samples(metrics, made))
    assert {f"signalbox_{name}" for name in CONTRACT} <= names
    assert "signalbox_gpu_temperature_celsius" not in names  # absent is absent


def test_odd_names_are_escaped_and_the_text_parses() -> None:
    """R54: quotes, backslashes and line ends in names."""
    metrics = Metrics()
    metrics.request_finished(record(tenant=ODD, model=ODD))
    found = samples(metrics, fleet(tenants=(wire.Tenant(name=ODD),)))
    assert ((("tenant", ODD),)) in found["signalbox_tenant_requests_total"]


def test_unknown_models_share_one_label() -> None:
    """R54: what a client made up never becomes a label."""
    metrics = Metrics()
    for _ in range(50):
        metrics.request_finished(record(model="", pool="", version="", status=404))
        metrics.answered_locally(401)
        metrics.answered_locally(200)
    found = samples(metrics, fleet())["signalbox_requests_total"]
    assert len(found) == 2
    assert all(dict(labels)["model"] == "unknown" for labels in found)


def test_series_of_removed_replicas_and_pools_leave() -> None:
    """R54: 200 replicas that came and went."""
    made, metrics = fleet(), Metrics()
    for i in range(200):
        pools = (pool(endpoints=(endpoint(f"x{i}"),)), pool(f"q{i}", size=1))
        made.apply(table(*pools), now=NOW, wall=NOW)
        metrics.request_finished(record(pool=f"q{i}"))
        metrics.take_deltas()
    found = samples(metrics, made)
    assert len(found["signalbox_inflight_requests"]) == 2
    assert len(found["signalbox_e2e_seconds_count"]) == 1
    assert len(found["signalbox_requests_total"]) == 1


def test_a_removed_pool_is_reported_before_it_is_forgotten() -> None:
    metrics = Metrics()
    metrics.request_finished(record(pool="gone"))
    render(metrics, fleet(), now=NOW)
    assert [d.pool for d in metrics.take_deltas()[0]] == ["gone"]
    render(metrics, fleet(), now=NOW)
    assert metrics.take_deltas() == ((), ())


def test_tenants_beyond_the_bound_are_added_up() -> None:
    metrics = Metrics()
    tenants = tuple(wire.Tenant(name=f"t{i}") for i in range(TENANT_SERIES + 20))
    for tenant in tenants:
        metrics.request_finished(record(tenant=tenant.name))
    found = samples(metrics, fleet(tenants=tenants))["signalbox_tenant_requests_total"]
    assert len(found) == TENANT_SERIES + 1
    assert found[(("tenant", "other tenants"),)] == 20


@given(st.lists(st.tuples(st.sampled_from([200, 499, 502]), st.booleans()), max_size=30))
def test_no_request_is_lost_or_doubled_between_reports(steps: list[tuple[int, bool]]) -> None:
    """Deltas that could not be sent come again, once."""
    metrics = Metrics()
    delivered = 0
    tokens = 0
    for status, arrives in steps:
        metrics.request_finished(record(status=status))
        pools, tenants = metrics.take_deltas()
        if arrives:
            delivered += sum(sum(d.requests.values()) for d in pools)
            tokens += sum(d.output_tokens for d in tenants)
        else:
            metrics.give_back(pools, tenants)
    pools, tenants = metrics.take_deltas()
    delivered += sum(sum(d.requests.values()) for d in pools)
    tokens += sum(d.output_tokens for d in tenants)
    assert (delivered, tokens) == (len(steps), 5 * len(steps))
    assert metrics.take_deltas() == ((), ())


def test_a_delta_has_all_figures() -> None:
    metrics = Metrics()
    metrics.request_finished(record(cached_prompt_tokens=3, queue_wait_s=0.1))
    (delta,), (tenant,) = metrics.take_deltas()
    assert (delta.prompt_tokens, delta.cached_prompt_tokens, delta.output_tokens) == (10, 3, 5)
    for histogram, value in (
        (delta.ttft, 0.2), (delta.tpot, 0.01), (delta.e2e, 0.5), (delta.queue_wait, 0.1),
    ):  # fmt: skip
        assert histogram == {latency_bucket(value): 1}
    assert tenant.requests == {"200": 1}


@given(st.floats(min_value=0, max_value=1e6))
def test_buckets_are_those_of_the_bounds(seconds: float) -> None:
    i = latency_bucket(seconds)
    assert i == len(LATENCY_BOUNDS_S) or seconds <= LATENCY_BOUNDS_S[i] * (1 + 1e-9)
    assert i == 0 or seconds > LATENCY_BOUNDS_S[i - 1] * (1 - 1e-9)


def test_histograms_are_cumulative_and_end_in_infinity() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.3, 10_000.0):
        metrics.request_finished(record(e2e_s=seconds))
    text = render(metrics, fleet(), now=NOW)
    counts = [
        int(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("signalbox_e2e_seconds_bucket")
    ]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2], counts[-1]) == (1, 2, 3)
    assert 'le="+Inf"' in text
    assert not re.search(r"\b(nan|NaN)\b", text)
    assert math.isfinite(sum(counts))


@pytest.mark.parametrize("status", [200, 429, 499, 599])
def test_any_status_has_a_code(status: int) -> None:
    metrics = Metrics()
    metrics.request_finished(record(status=status))
    assert list(metrics.take_deltas()[0][0].requests) == [str(status)]
