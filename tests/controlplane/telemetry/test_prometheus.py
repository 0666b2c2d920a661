"""Prometheus behind its deadline: answers, absence with a reason, one query for many readers."""

from __future__ import annotations

import threading

import pytest

from controlplane.telemetry import prometheus as module
from controlplane.telemetry import queries, source
from controlplane.telemetry.prometheus import Prometheus
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window

WINDOW = Window(end_s=1_800_000_000, step_s=5, steps=3, span_s=15)


def values(*numbers: str, **labels: str):
    times = WINDOW.times
    return {"metric": labels, "values": [[t, n] for t, n in zip(times, numbers, strict=True)]}


@pytest.fixture
def client(prometheus_server):
    return Prometheus(prometheus_server.url, deadline_s=0.5)


def test_series_come_aligned_and_keyed_by_their_label(prometheus_server, client):
    prometheus_server.answer = lambda path, asked: [
        values("1", "2", "3", code="200"),
        values("0", "NaN", "+Inf", code="502"),
    ]
    found = client.over("q", "code", WINDOW)
    assert found.rows == {"200": [1.0, 2.0, 3.0], "502": [0.0, None, None]}


def test_missing_series_are_no_data_not_zero(client):
    answer = client.over("q", None, WINDOW)
    assert isinstance(answer, NoData)
    assert "no such series" in answer.reason


def test_a_hanging_prometheus_is_given_up_at_the_deadline(prometheus_server, client):
    prometheus_server.held.clear()
    answer = client.over("q", None, WINDOW)
    assert isinstance(answer, NoData)
    assert "within 0.5 s" in answer.reason


def test_after_a_failure_others_are_told_at_once(prometheus_server, client):
    prometheus_server.stop()
    first = client.over("q", None, WINDOW)
    asked = len(prometheus_server.asked)
    second = client.over("another", None, WINDOW)
    assert isinstance(first, NoData)
    assert second == first
    assert len(prometheus_server.asked) == asked


@pytest.mark.parametrize(
    "raw", [(200, b"<html>sign in</html>"), (500, b"boom"), (200, b'{"status":"success"}')]
)
def test_an_answer_in_no_known_form_is_a_reason_not_a_crash(prometheus_server, client, raw):
    prometheus_server.raw = raw
    assert isinstance(client.over("q", None, WINDOW), NoData)


def test_thirty_readers_cost_one_query(prometheus_server, client):
    prometheus_server.answer = lambda path, asked: [values("1", "2", "3")]
    prometheus_server.held.clear()
    client = Prometheus(prometheus_server.url, deadline_s=10)
    found = []
    readers = [
        threading.Thread(target=lambda: found.append(client.over("q", None, WINDOW)))
        for _ in range(30)
    ]
    for reader in readers:
        reader.start()
    prometheus_server.held.set()
    for reader in readers:
        reader.join()
    assert [answered.rows for answered in found] == [{"": [1.0, 2.0, 3.0]}] * 30
    assert prometheus_server.queries() == ["q"]


def test_quotes_in_a_label_cannot_leave_the_query():
    text = queries.REQUESTS.text(pool='x"} or vector(1) #', range="30s")
    assert 'pool="x\\"} or vector(1) #"' in text


class Told:
    """A recent store that holds one thing."""

    def __init__(self, answer):
        self.answer = answer

    def pool_steps(self, pool, start_s, end_s, base_s):
        return self.answer


@pytest.fixture
def configured(settings, prometheus_server, monkeypatch):
    settings.PROMETHEUS_URL = prometheus_server.url
    monkeypatch.setattr(module, "_client", Prometheus(prometheus_server.url, deadline_s=0.5))
    return prometheus_server


def test_charts_come_from_prometheus_where_it_answers(configured):
    configured.answer = lambda path, asked: [values("0.1", "0.2", "0.3")]
    found = source.pool_chart("chat", "ttft", WINDOW)
    assert isinstance(found, SeriesSet)
    assert found.source == "Prometheus"
    assert found.series["p95"] == [0.1, 0.2, 0.3]


def test_statuses_from_prometheus_are_summed_into_outcomes(configured):
    configured.answer = lambda path, asked: [
        values("1", "1", "1", code="500"),
        values("2", "2", "2", code="503"),
        values("5", "5", "5", code="200"),
    ]
    found = source.pool_chart("chat", "requests", WINDOW)
    assert found.series == {"answered": [5.0, 5.0, 5.0], "failed": [3.0, 3.0, 3.0]}


def test_without_prometheus_the_recent_store_answers_and_the_chart_says_why(
    configured, monkeypatch
):
    configured.stop()
    from controlplane.telemetry.snapshots import PoolStep

    step = PoolStep(histograms={"ttft": {40: 5}})
    told = Told([step] * 5)
    monkeypatch.setattr(source.recent, "store", lambda: told)
    found = source.pool_chart("chat", "ttft", WINDOW)
    assert found.source == "recent store"
    assert "Prometheus is unreachable" in found.note


def test_with_both_stores_gone_the_reason_names_both(configured, monkeypatch):
    configured.stop()
    told = Told(NoData("Redis does not answer."))
    monkeypatch.setattr(source.recent, "store", lambda: told)
    found = source.pool_chart("chat", "ttft", WINDOW)
    assert isinstance(found, NoData)
    assert "Prometheus" in found.reason
    assert "Redis" in found.reason
