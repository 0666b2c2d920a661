"""Agents as processes keep lives of requests: for admin port, collector and control plane."""

from __future__ import annotations

import signal

import pytest

from routing_agent.config import serve_config
from tests.agent.test_app import CHAT, client, complete, control_plane, engine, managed, ready, run
from tests.agent.test_otlp import FakeCollector, collector
from tests.agent.waiting import until

__all__ = ["client", "collector", "control_plane", "engine", "run"]  # fixtures used below
ALL = ("--sample-ratio", "1")


async def test_a_kept_request_can_be_read_on_the_admin_port(run, engine, client):
    agent = await run("serve", "--worker-urls", engine.url, *ALL)
    await agent.listens()
    await ready(agent, client)
    await complete(agent, client, **{"x-request-id": "mine/1"})
    found = await client.get(f"{agent.admin}/agent/v1/requests/mine%2F1")
    assert found.json()["stages"][-1]["stage"] == "DONE"
    listed = (await client.get(f"{agent.admin}/agent/v1/requests")).json()["requests"]
    assert [r["request_id"] for r in listed] == ["mine/1"]
    missing = await client.get(f"{agent.admin}/agent/v1/requests/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_kept")
    metrics = (await client.get(f"{agent.admin}/metrics")).text
    assert 'signalbox_request_records_total{outcome="kept_sampled"} 1' in metrics
    assert 'signalbox_stage_budget_seconds{stage="queue"} 0.08' in metrics


async def test_nothing_but_failures_is_kept_at_a_ratio_of_zero(run, engine, client):
    agent = await run("serve", "--worker-urls", engine.url, "--sample-ratio", "0")
    await agent.listens()
    await ready(agent, client)
    await complete(agent, client)
    assert (await client.get(f"{agent.admin}/agent/v1/requests")).json() == {"requests": []}


async def test_spans_reach_the_collector_of_opentelemetrys_variable(
    run, engine, client, collector: FakeCollector
):
    agent = await run(
        *("serve", "--worker-urls", engine.url, *ALL),
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
    )
    await agent.listens()
    await ready(agent, client)
    await complete(agent, client)
    await until(lambda: collector.spans)
    await complete(agent, client, **{"x-request-id": "last"})
    agent.tell(signal.SIGTERM)
    assert await agent.exit_status() == 0
    names = [span["name"] for span in collector.spans]
    assert names.count("POST /v1/completions") == 2  # the last one at the goodbye


async def test_records_reach_a_control_plane_that_was_away(
    run, engine, client, control_plane, tmp_path
):
    agent = await run(*managed(control_plane, tmp_path, *ALL))
    await agent.listens()
    await ready(agent, client)
    control_plane.status = 503
    reply = await client.post(f"{agent.traffic}/v1/chat/completions", json=CHAT | {"model": "m"})
    assert reply.status_code == 200
    agent.tell(signal.SIGTERM)
    assert await agent.exit_status() == 0
    assert control_plane.records == {}
    control_plane.status = None
    again = await run(*managed(control_plane, tmp_path, *ALL), name="again")
    await again.listens()
    await until(lambda: control_plane.records)
    (record,) = control_plane.records.values()
    assert record.request_id == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "words", [("--sample-ratio", "1.5"), ("--otlp-endpoint", "collector:4318")]
)
def test_options_that_cannot_be_obeyed_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        serve_config(["--worker-urls", "http://127.0.0.1:1", *words])
    assert words[0] in capsys.readouterr().err
