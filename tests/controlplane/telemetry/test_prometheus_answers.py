"""What Prometheus's documented API may answer, and what a reader then sees."""

from __future__ import annotations

import json
import time

import pytest

from controlplane.telemetry import from_prometheus, payloads
from controlplane.telemetry.prometheus import ANSWER_LIMIT_BYTES, Prometheus
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window
from tests.controlplane.staff import signed_in
from tests.controlplane.telemetry.test_prometheus import WINDOW, values
from tests.factories import make_pool, make_replica


@pytest.fixture
def client(prometheus_server):
    return Prometheus(prometheus_server.url, deadline_s=2)


def error(kind: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": text}).encode()


def test_a_refused_query_says_why_and_shuts_nobody_else_out(prometheus_server, client):
    prometheus_server.raw = (400, error("bad_data", "parse error at char 7"))
    answer = client.over("rate(", None, WINDOW)
    assert answer == NoData("Prometheus refused the query: bad_data: parse error at char 7")
    prometheus_server.raw = None
    prometheus_server.answer = lambda path, asked: [values("1", "2", "3")]
    assert client.over("q", None, WINDOW).rows == {"": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "timeout"), (503, "unavailable"), (500, "internal"), (429, "busy")]
)
def test_a_server_in_trouble_is_left_alone_for_a_while(prometheus_server, client, status, kind):
    prometheus_server.raw = (status, error(kind, "query timed out in expression evaluation"))
    assert kind in client.over("q", None, WINDOW).reason
    prometheus_server.raw = None
    asked = len(prometheus_server.asked)
    assert kind in client.over("another", None, WINDOW).reason
    assert len(prometheus_server.asked) == asked


def test_an_error_with_status_200_is_an_error(prometheus_server, client):
    prometheus_server.raw = (200, error("execution", "many-to-many matching not allowed"))
    assert "many-to-many" in client.over("q", None, WINDOW).reason


def test_warnings_of_partial_data_stand_beside_the_chart(prometheus_server, client):
    prometheus_server.answer = lambda path, asked: [values("0.1", "NaN", "0.3")]
    prometheus_server.warnings = ["remote read: store-2 did not answer"]
    found = from_prometheus.pool_chart(client, "chat", "ttft", WINDOW)
    assert found.series["p95"] == [0.1, None, 0.3]
    built = payloads.payload("TTFT", found, revision="r")
    assert built["note"] == "Prometheus warns: remote read: store-2 did not answer"
    prometheus_server.warnings = []


def test_a_quantile_of_nothing_is_no_data(prometheus_server, client):
    prometheus_server.answer = lambda path, asked: [values("NaN", "NaN", "NaN")]
    found = from_prometheus.pool_chart(client, "chat", "ttft", WINDOW)
    assert found == NoData("Prometheus has no samples in this window.")


def test_series_that_begin_late_or_miss_steps_have_gaps(prometheus_server, client):
    begin, _, end = WINDOW.times
    prometheus_server.answer = lambda path, asked: [
        {"metric": {"code": "200"}, "values": [[end, "3"]]},
        {"metric": {"code": "503"}, "values": [[begin, "1"], [end, "2"]]},
    ]
    found = from_prometheus.pool_chart(client, "chat", "requests", WINDOW)
    assert found.series == {"answered": [None, None, 3.0], "failed": [1.0, None, 2.0]}


@pytest.mark.parametrize("apart_s", [300.0, -300.0])
def test_a_clock_five_minutes_off_is_corrected_and_said(prometheus_server, client, apart_s):
    prometheus_server.clock = lambda: time.time() + apart_s

    def by_its_clock(path, asked):
        start, end, step = (float(asked[k]) for k in ("start", "end", "step"))
        count = round((end - start) / step) + 1
        return [{"metric": {}, "values": [[start + i * step, str(i)] for i in range(count)]}]

    prometheus_server.answer = by_its_clock
    now = int(time.time())
    recent = Window(end_s=now // 5 * 5, step_s=5, steps=3, span_s=15)
    found = from_prometheus.pool_chart(client, "chat", "tokens", recent)
    assert isinstance(found, SeriesSet)
    assert found.series["prompt"] == [0.0, 1.0, 2.0]
    ends = {float(a["end"]) for p, a in prometheus_server.asked if p.endswith("query_range")}
    assert {end - recent.end_s for end in ends} == {apart_s}
    side = "ahead of" if apart_s > 0 else "behind"
    assert f"5 m {side} ours" in found.note


def test_a_small_difference_of_clocks_is_none(prometheus_server, client):
    prometheus_server.clock = lambda: time.time() + 2
    prometheus_server.answer = lambda path, asked: [values("1", "2", "3")]
    assert from_prometheus.pool_chart(client, "chat", "tokens", WINDOW).note == ""
    assert client.problem() == ""


def test_charts_that_prometheus_does_not_hold_are_not_asked_for(prometheus_server, client):
    for chart in ("kv", "load", "gpu", "preemptions"):
        assert from_prometheus.pool_chart(client, "chat", chart, WINDOW) is None
    assert prometheus_server.asked == []


def success(result: object, **more: object) -> bytes:
    return json.dumps({"status": "success", "data": {"result": result}} | more).encode()


AT = WINDOW.times[0]
RUBBISH = {
    "a page of HTML": b"<!doctype html><html><body>Welcome to nginx</body></html>",
    "nothing": b"",
    "cut JSON": success([{"metric": {}, "values": [[AT, "1"]]}])[:-9],
    "JSON without end": b"[" * 200_000,
    "no UTF-8": b'{"status": "success", "data": {"result": ["\xff\xfe"]}}',
    "a number": b"5",
    "null": b"null",
    "no data": b'{"status": "success"}',
    "data null": b'{"status": "success", "data": null}',
    "result a text": success("up"),
    "result an object": success({"a": 1}),
    "result numbers": success([1, 2]),
    "no values": success([{"metric": {}}]),
    "a single value": success([{"metric": {}, "value": [AT, "1"]}]),
    "values null": success([{"metric": {}, "values": None}]),
    "values of one": success([{"metric": {}, "values": [[AT]]}]),
    "values of words": success([{"metric": {}, "values": [[AT, "many"]]}]),
    "values of lists": success([{"metric": {}, "values": [[AT, []]]}]),
    "no time": success([{"metric": {}, "values": [["noon", "1"]]}]),
    "endless time": success([{"metric": {}, "values": [["inf", "1"]]}]),
    "metric null": success([{"metric": None, "values": [[AT, "1"]]}]),
    "warnings a number": success([], warnings=5),
    "huge": b" " * (ANSWER_LIMIT_BYTES + 1),
}


def test_rubbish_is_an_error_in_words_never_no_data_and_never_a_failure(prometheus_server, caplog):
    for name, body in RUBBISH.items():
        prometheus_server.raw = (200, body)
        fresh = Prometheus(prometheus_server.url, deadline_s=20)
        fresh._clocks.get("clock", lambda: 0.0)  # only the query itself is answered so
        answer = fresh.over("q", "code", WINDOW)
        assert isinstance(answer, NoData), name
        known = ("in no known form", "more than")
        assert any(words in answer.reason for words in known), (name, answer.reason)
        assert fresh.problem(), name
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("told", ["NaN", "+Inf", "1e300", "-1e18", "soon", None, []])
def test_a_clock_that_is_no_time_is_an_error_and_shifts_nothing(prometheus_server, client, told):
    prometheus_server.raw = (200, success([AT, told]))
    assert "no known form" in client.problem()
    assert client.skew_s() == 0.0
    assert client.skew_note() == ""
    assert "no known form" in client.over("q", None, WINDOW).reason


@pytest.mark.django_db
def test_pages_say_that_prometheus_is_at_fault(prometheus_server, settings, monkeypatch):
    prometheus_server.raw = (200, RUBBISH["a page of HTML"])
    settings.PROMETHEUS_URL = prometheus_server.url
    make_replica(make_pool("chat"))
    client = signed_in()
    for path in ("/", "/system/", "/pools/chat/", "/pools/chat/?window=15m"):
        page = client.get(path)
        assert page.status_code == 200
        assert "Prometheus answered in no known form" in page.content.decode(), path
