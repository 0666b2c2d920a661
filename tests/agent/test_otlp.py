"""Spans at a collector on a real socket: complete, bounded, dropped aloud."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from routing_agent import otlp
from routing_agent.control.http_server import Answer, HttpServer, Request
from routing_agent.http_client import HttpClient
from routing_agent.otlp import Collector, SpanExporter, collector_of
from routing_agent.spans import spans_of
from routing_agent.wire import (
    AttemptRecord,
    DecisionRecord,
    RequestRecord,
    StageRecord,
)
from tests.agent.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class FakeCollector:
    """Takes OTLP over HTTP as JSON."""

    def __init__(self) -> None:
        self.status = 200
        self.calls: list[Request] = []
        self.hang: asyncio.Event | None = None

    async def start(self) -> FakeCollector:
        self._server = HttpServer(self.handle)
        self.port = await self._server.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        await self._server.close()

    async def handle(self, request: Request) -> Answer:
        if self.hang is not None:
            await self.hang.wait()
        if self.status == 200:
            self.calls.append(request)
        return Answer(self.status, b"{}")

    @property
    def spans(self) -> list[dict]:
        return [
            span
            for call in self.calls
            for resource in json.loads(call.body)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
async def collector():
    made = await FakeCollector().start()
    yield made
    await made.stop()


@pytest.fixture
async def client():
    made = HttpClient()
    yield made
    await made.close()


def life(uid: str = "f" * 32, **given) -> RequestRecord:
    """A request that waited, was tried at r0, then streamed from r1."""
    defaults = {
        "request_id": "req-1",
        "received_at": 1_700_000_000.0,
        "trace_id": TRACE,
        "span_id": "a" * 16,
        "parent_span_id": "b" * 16,
        "tenant": "acme",
        "model": "m",
        "path": "/v1/chat/completions",
        "prompt_tokens": 512,
        "output_tokens": 20,
        "decision": DecisionRecord(pool="chat", policy="least_tokens", replica="r1"),
        "attempts": (
            AttemptRecord(
                replica="r0",
                at=1_700_000_000.1,
                duration_s=0.2,
                outcome="connect",
                reason="refused",
                span_id="1" * 16,
            ),
            AttemptRecord(replica="r1", at=1_700_000_000.4, duration_s=0.6, span_id="2" * 16),
        ),
        "stages": (
            StageRecord(stage="RECEIVED", at=1_700_000_000.0),
            StageRecord(stage="QUEUED", at=1_700_000_000.0, duration_s=0.1),
            StageRecord(stage="BOUND", at=1_700_000_000.1, duration_s=0.2),
            StageRecord(stage="QUEUED", at=1_700_000_000.3, duration_s=0.1),
            StageRecord(stage="BOUND", at=1_700_000_000.4),
            StageRecord(stage="PREFILL", at=1_700_000_000.4, duration_s=0.2, estimated=True),
            StageRecord(stage="DECODE", at=1_700_000_000.6, duration_s=0.4),
            StageRecord(stage="DONE", at=1_700_000_001.0),
        ),
        "e2e_s": 1.0,
    }
    return RequestRecord(uid=uid, **(defaults | given))


def exporter(collector: FakeCollector, client: HttpClient) -> tuple[SpanExporter, Counter[str]]:
    counts: Counter[str] = Counter()
    return SpanExporter(Collector(collector.url + "/v1/traces"), client, counts), counts


def attributes(span: dict) -> dict:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


async def test_a_request_becomes_a_tree_of_spans(collector, client):
    made, counts = exporter(collector, client)
    made.note(life())
    assert await made.export()
    call = collector.calls[0]
    assert (call.method, call.path) == ("POST", "/v1/traces")
    assert call.headers["content-type"] == "application/json"
    server, queued, first, pause, second, prefill, decode = collector.spans
    assert (server["name"], server["kind"]) == ("POST /v1/chat/completions", 2)
    assert (server["traceId"], server["spanId"], server["parentSpanId"]) == (
        TRACE,
        "a" * 16,
        "b" * 16,
    )
    assert server["startTimeUnixNano"] == "1700000000000000000"
    assert server["endTimeUnixNano"] == "1700000001000000000"
    assert [s["name"] for s in (queued, pause)] == ["queue", "queue"]
    assert {s["parentSpanId"] for s in (queued, first, pause, second)} == {"a" * 16}
    assert (first["spanId"], second["spanId"]) == ("1" * 16, "2" * 16)
    assert first["status"]["code"] == 2
    assert "status" not in second
    assert {prefill["parentSpanId"], decode["parentSpanId"]} == {"2" * 16}
    assert len({s["spanId"] for s in collector.spans}) == 7
    told = attributes(server)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "m"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == ("512", "20")
    assert counts == {"exported": 1}


def test_a_failed_request_is_an_error_and_a_client_that_left_is_none():
    assert spans_of(life(status=502, error="engine_failed"))[0]["status"]["code"] == 2
    assert "status" not in spans_of(life(status=499, error="client_left"))[0]
    assert "parentSpanId" not in spans_of(life(parent_span_id=""))[0]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_collector_is_asked_again_ever_less_often(collector, client, status):
    made, counts = exporter(collector, client)
    made.note(life())
    collector.status = status
    assert not await made.export()
    assert made.waiting == 1
    assert made._pause_s == 2 * otlp.PAUSE_S
    collector.status = 200
    assert await made.export()
    assert made._pause_s == otlp.PAUSE_S
    assert counts == {"exported": 1}


async def test_what_a_collector_refuses_is_dropped_and_counted(collector, client):
    made, counts = exporter(collector, client)
    made.note(life())
    collector.status = 400
    assert not await made.export()
    assert made.waiting == 0
    assert counts == {"export_dropped": 1}


async def test_a_collector_that_is_away_costs_a_bounded_queue(client, monkeypatch):
    monkeypatch.setattr(otlp, "QUEUE_LIMIT", 10)
    counts: Counter[str] = Counter()
    made = SpanExporter(Collector("http://127.0.0.1:1/v1/traces"), client, counts)
    for i in range(25):
        made.note(life(f"{i:032}"))
    assert not await made.export()
    assert made.waiting == 10
    assert counts == {"export_dropped": 15}


async def test_a_collector_that_hangs_is_given_up_in_time(collector, client, monkeypatch):
    monkeypatch.setattr(otlp, "CALL_LIMIT_S", 0.05)
    collector.hang = asyncio.Event()
    made, _ = exporter(collector, client)
    made.note(life())
    assert not await made.export()
    assert made.waiting == 1
    collector.hang.set()


async def test_it_exports_by_itself_and_sends_the_rest_when_it_is_stopped(
    collector, client, monkeypatch
):
    monkeypatch.setattr(otlp, "PAUSE_S", 0.01)
    made, counts = exporter(collector, client)
    running = asyncio.create_task(made.run())
    for i in range(250):
        made.note(life(f"{i:032}"))
    await until(lambda: counts["exported"] == 250)
    made.note(life())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert counts == {"exported": 251}


def test_the_collector_comes_from_the_option_or_opentelemetrys_variables():
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318/"}
    assert collector_of(None, {}) is None
    assert collector_of(None, base).url == "http://otel:4318/v1/traces"
    assert collector_of("http://mine:1", base).url == "http://mine:1/v1/traces"
    exact = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://otel:4318/custom"}
    assert collector_of(None, base | exact).url == "http://otel:4318/custom"
    assert collector_of(None, base | {"OTEL_SDK_DISABLED": "true"}) is None
    named = collector_of(
        None,
        base
        | {
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20secret, x-scope=1",
            "OTEL_SERVICE_NAME": "edge",
        },
    )
    assert named.headers == {"authorization": "Bearer secret", "x-scope": "1"}
    assert named.service == "edge"
    assert "secret" not in repr(named)


@pytest.mark.parametrize(
    ("option", "environment"),
    [
        ("otel:4318", {}),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://x"}),
        ("http://x", {"OTEL_EXPORTER_OTLP_HEADERS": "novalue"}),
        ("http://x", {"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0d%0ac: d"}),
    ],
)
def test_an_unreadable_collector_is_refused(option, environment):
    with pytest.raises(ValueError, match=r"http|OTEL"):
        collector_of(option, environment)
