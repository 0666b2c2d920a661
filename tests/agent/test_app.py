"""The agent as a process: starts, serves, survives, drains, stops."""

from __future__ import annotations

import asyncio
import signal
import ssl
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.agent.certificates import Authority
from tests.agent.control.tables import a_table
from tests.agent.processes import AgentProcess
from tests.agent.slow_engine import SlowEngine
from tests.agent.waiting import until
from tests.fakes.control_plane import FakeControlPlane

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
WITHOUT_CONTROL_PLANE = """
import runpy, sys
for name in ("django", "rest_framework", "celery", "redis", "controlplane"):
    sys.modules[name] = None
runpy.run_module("routing_agent", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
async def engine():
    engine = await SlowEngine().start()
    yield engine
    await engine.stop()


@pytest.fixture
async def control_plane(engine):
    control_plane = await FakeControlPlane(table=a_table(5, urls=(engine.url,))).start()
    yield control_plane
    await control_plane.stop()


@pytest.fixture
async def run(tmp_path):
    """Start agents that are gone when the test is."""
    async with AsyncExitStack() as stack:

        async def start(*words, name="agent", environment=None, **options) -> AgentProcess:
            agent = AgentProcess(tmp_path / f"{name}.log", *words, **options)
            await agent.start(environment)
            stack.push_async_callback(agent.kill)
            return agent

        yield start


@pytest.fixture
async def client():
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        yield client


def managed(control_plane, tmp_path, *more, state="state"):
    token = tmp_path / "token"
    token.write_text("once\n")
    return (
        *("agent", "--control-plane", control_plane.url, "--token-file", str(token)),
        *("--name", "node-a", "--state-dir", str(tmp_path / state), *more),
    )


async def ready(agent, client):
    async with asyncio.timeout(20):  # another process: nothing to wait on but its answers
        while (await client.get(f"{agent.admin}/readyz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def complete(agent, client, **headers):
    body = {"model": "m", "prompt": "hello", "max_tokens": 1}
    return await client.post(f"{agent.traffic}/v1/completions", json=body, headers=headers)


# -- stand-alone -------------------------------------------------------------------------------


async def test_stand_alone_it_routes_without_anything_of_the_control_plane(run, engine, client):
    agent = await run("serve", "--worker-urls", engine.url, start=("-c", WITHOUT_CONTROL_PLANE))
    await agent.listens()
    await ready(agent, client)
    assert (await complete(agent, client)).status_code == 200
    state = (await client.get(f"{agent.admin}/agent/v1/state")).json()
    assert (state["table_source"], state["replicas"][0]["replica"]) == ("standalone", "replica-1")
    agent.tell(signal.SIGTERM)
    assert await agent.exit_status() == 0


async def test_an_engine_that_comes_up_later_joins(run, engine, client, unused_tcp_port):
    late = SlowEngine()
    late.port = unused_tcp_port
    agent = await run("serve", "--worker-urls", engine.url, late.url)
    await agent.listens()
    await ready(agent, client)
    await until(lambda: agent.events("engine_not_known_yet"))
    await late.start()
    await until(lambda: len(agent.events("table_built")) == 2)
    state = (await client.get(f"{agent.admin}/agent/v1/state")).json()
    assert [r["replica"] for r in state["replicas"]] == ["replica-1", "replica-2"]
    await late.stop()


async def test_engines_with_ipv6_addresses_are_two_healthy_replicas(run, client):
    engines = [await SlowEngine("::1").start() for _ in range(2)]
    agent = await run(
        *("serve", "--policy", "round_robin"), "--worker-urls", *(engine.url for engine in engines)
    )
    await agent.listens()
    await until(lambda: len(agent.events("replica_health")) == 2)
    assert {e["health"] for e in agent.events("replica_health")} == {"healthy"}
    for _ in range(4):
        assert (await complete(agent, client)).status_code == 200
    assert [engine.calls["/v1/completions"] for engine in engines] == [2, 2]
    metrics = (await client.get(f"{agent.admin}/metrics")).text
    assert "replica-1" in metrics
    assert "replica-2" in metrics
    for engine in engines:
        await engine.stop()


async def test_both_sides_may_be_encrypted_and_a_new_certificate_is_noticed(run, tmp_path):
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("127.0.0.1", file="engine"))
    engine = await SlowEngine(tls=context).start()
    cert, key = authority.issue("127.0.0.1", file="traffic")
    agent = await run(
        *("serve", "--worker-urls", engine.url, "--engine-ca-file", str(authority.ca_file)),
        *("--tls-cert-file", str(cert), "--tls-key-file", str(key)),
    )
    await agent.listens()
    assert agent.traffic.startswith("https://")
    trust = ssl.create_default_context(cafile=authority.ca_file)
    async with httpx.AsyncClient(trust_env=False, timeout=20, verify=trust) as client:
        await ready(agent, client)
        assert (await complete(agent, client)).status_code == 200
    assert len(agent.events("certificate_loaded")) == 1
    authority.issue("127.0.0.1", file="traffic")
    await until(lambda: len(agent.events("certificate_loaded")) == 2)
    await engine.stop()


async def test_stand_alone_nobody_pushes_a_table(run, engine, client):
    agent = await run("serve", "--worker-urls", engine.url)
    await agent.listens()
    answer = await client.put(f"{agent.admin}/agent/v1/routing-table", content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "standalone")


async def test_a_key_file_closes_the_door_to_everyone_else(run, engine, client, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# our clients\nacme sk-acme\nsk-anyone\n")
    agent = await run("serve", "--worker-urls", engine.url, "--client-key-file", str(keys))
    await agent.listens()
    await ready(agent, client)
    assert (await complete(agent, client)).status_code == 401
    for key in ("sk-acme", "sk-anyone"):
        answer = await complete(agent, client, authorization=f"Bearer {key}")
        assert answer.status_code == 200
    assert "sk-acme" not in agent.text


# -- under a control plane ---------------------------------------------------------------------


async def test_it_registers_pulls_its_table_and_serves(run, control_plane, client, tmp_path):
    agent = await run(*managed(control_plane, tmp_path, "--simulated-gpus", "2,H100,80GB"))
    await agent.listens()
    await ready(agent, client)
    assert (await complete(agent, client)).status_code == 200
    request = control_plane.registered[0]
    assert (request.name, request.traffic_url, request.admin_url) == (
        "node-a",
        agent.traffic,
        agent.admin,
    )
    gpus = request.node.gpus
    assert [(g.model, g.memory_bytes, g.simulated) for g in gpus] == [
        ("H100", 80 * 10**9, True)
    ] * 2
    await until(lambda: control_plane.usage)
    assert control_plane.usage[1].pool == "chat"


async def test_a_push_takes_effect_and_is_reported(run, control_plane, client, tmp_path):
    agent = await run(*managed(control_plane, tmp_path))
    await agent.listens()
    await ready(agent, client)
    answer = await control_plane.push(agent.admin, a_table(6))
    assert answer.json()["outcome"] == "applied"
    await until(lambda: control_plane.reports[-1].epoch == 6)
    assert control_plane.reports[-1].table_source == "push"
    refused = await client.put(f"{agent.admin}/agent/v1/routing-table", content=answer.content)
    assert refused.status_code == 401


async def test_killed_and_restarted_without_its_control_plane_it_serves_from_disk(
    run, control_plane, client, tmp_path
):
    first = await run(*managed(control_plane, tmp_path))
    await first.listens()
    await ready(first, client)
    await control_plane.stop()
    await first.kill()
    again = await run(*managed(control_plane, tmp_path), name="again")
    await again.listens()
    assert (await complete(again, client)).status_code == 200
    await until(lambda: again.events("report_failed"))
    await control_plane.start()
    await until(lambda: control_plane.reports[-1].table_source == "disk")
    assert control_plane.reports[-1].epoch == 5
    state = (await control_plane.ask(again.admin, "/agent/v1/state")).json()
    assert (state["table_source"], state["last_report_error"]) == ("disk", "")


async def test_after_a_restart_an_older_table_still_never_wins(
    run, control_plane, client, tmp_path
):
    first = await run(*managed(control_plane, tmp_path))
    await first.listens()
    await ready(first, client)
    await first.kill()
    again = await run(*managed(control_plane, tmp_path), name="again")
    await again.listens()
    await until(lambda: again.events("table_applied"))
    answer = await control_plane.push(again.admin, a_table(4))
    assert (answer.json()["outcome"], answer.json()["epoch"]) == ("refused_older", 5)


async def test_a_corrupt_disk_table_is_reported_and_replaced(run, control_plane, client, tmp_path):
    first = await run(*managed(control_plane, tmp_path))
    await first.listens()
    await ready(first, client)
    await first.kill()
    (tmp_path / "state" / "table.json").write_bytes(b'{"kind":')
    again = await run(*managed(control_plane, tmp_path), name="again")
    await again.listens()
    await ready(again, client)
    assert again.events("table_file_corrupt")
    assert (tmp_path / "state" / "table.json.corrupt").exists()


async def test_a_used_token_ends_with_the_reason_and_the_remedy(run, control_plane, tmp_path):
    control_plane.tokens.clear()
    agent = await run(*managed(control_plane, tmp_path))
    assert await agent.exit_status() == 3
    [refusal] = agent.events("registration_refused")
    assert "create a new one in the console" in refusal["why"]


async def test_with_a_new_token_and_adopt_it_moves_to_another_control_plane(
    run, control_plane, engine, client, tmp_path
):
    first = await run(*managed(control_plane, tmp_path))
    await first.listens()
    await ready(first, client)
    await first.kill()
    other = await FakeControlPlane(
        lineage="lineage-2",
        tokens={"moving"},
        table=a_table(1, lineage="lineage-2", urls=(engine.url,)),
    ).start()
    words = managed(other, tmp_path, "--adopt")
    (tmp_path / "token").write_text("moving")
    for name in ("moved", "and-started-again-with-the-same-words"):
        agent = await run(*words, name=name)
        await agent.listens()
        assert (await complete(agent, client)).status_code == 200
        await until(lambda: other.reports and other.reports[-1].lineage == "lineage-2")
        assert other.reports[-1].epoch == 1
        await agent.kill()
        other.reports.clear()
    await other.stop()


async def test_a_token_may_come_from_the_environment(run, control_plane, client, tmp_path):
    agent = await run(
        *("agent", "--control-plane", control_plane.url, "--state-dir", str(tmp_path / "s")),
        environment={"SIGNALBOX_TOKEN": "once"},
    )
    await agent.listens()
    await ready(agent, client)


async def test_a_taken_port_is_told_before_the_token_is_used(run, control_plane, engine, tmp_path):
    agent = await run(*managed(control_plane, tmp_path), admin_port=engine.port)
    assert await agent.exit_status() == 1
    [failure] = agent.events("agent_cannot_start")
    assert f"port {engine.port}" in failure["why"]
    assert "--admin-port" in failure["why"]
    assert control_plane.tokens == {"once"}


async def test_two_agents_cannot_share_a_state_folder(run, control_plane, tmp_path):
    control_plane.tokens.add("second")
    first = await run(*managed(control_plane, tmp_path))
    await first.listens()
    second = await run(*managed(control_plane, tmp_path), name="second")
    assert await second.exit_status() == 1
    assert "--state-dir" in second.events("agent_cannot_start")[0]["why"]


async def test_it_can_be_stopped_while_it_waits_for_its_control_plane(run, control_plane, tmp_path):
    await control_plane.stop()
    agent = await run(*managed(control_plane, tmp_path))
    await until(lambda: agent.events("registration_waits"))
    agent.tell(signal.SIGTERM)
    assert await agent.exit_status() == 0


SKEWED = """
import pathlib, runpy, sys, time
true_time, error_s = time.time, pathlib.Path(sys.argv.pop(1))
time.time = lambda: true_time() + float(error_s.read_text())
runpy.run_module("routing_agent", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("error_s", [600, -600])
async def test_a_wrong_clock_and_a_step_of_an_hour_change_nothing(
    run, control_plane, engine, client, tmp_path, error_s
):
    clock = tmp_path / "clock-error"
    clock.write_text(str(error_s))
    skewed = ("-c", SKEWED, str(clock))
    agent = await run(*managed(control_plane, tmp_path), start=skewed)
    await agent.listens()
    await ready(agent, client)
    answer = await control_plane.push(agent.admin, a_table(6, urls=(engine.url,)))
    assert answer.json()["outcome"] == "applied"
    clock.write_text(str(error_s + 3600))
    answer = await control_plane.push(agent.admin, a_table(7, urls=(engine.url,)))
    assert answer.json()["outcome"] == "applied"
    assert (await complete(agent, client)).status_code == 200
    old = await control_plane.push(agent.admin, a_table(8), at=control_plane.now() - 90)
    assert old.json()["error"]["code"] == "out_of_time"
    await agent.kill()
    again = await run(*managed(control_plane, tmp_path), name="again", start=skewed)
    await again.listens()
    await until(lambda: again.events("table_applied"))
    answer = await control_plane.push(again.admin, a_table(9, urls=(engine.url,)))
    assert answer.json()["outcome"] == "applied"
    mine = (await complete(again, client)).headers["x-request-id"]
    await until(lambda: mine in [u.request_id for u in control_plane.usage.values()])
    [used] = [u for u in control_plane.usage.values() if u.request_id == mine]
    assert abs(used.at - control_plane.now()) < 60
    assert all(r.uptime_s >= 0 for r in control_plane.reports)


# -- drain -------------------------------------------------------------------------------------


async def streaming(agent, client, stack):
    """Open a stream and read its first piece."""
    opening = client.stream("POST", f"{agent.traffic}/v1/chat/completions", json=CHAT)
    response = await stack.enter_async_context(opening)
    pieces = response.aiter_text()
    first = ""
    while "first" not in first:
        first += await anext(pieces)
    return pieces


async def test_at_sigterm_a_running_stream_ends_well_and_new_clients_are_not_taken(
    run, control_plane, engine, client, tmp_path
):
    agent = await run(*managed(control_plane, tmp_path))
    await agent.listens()
    await ready(agent, client)
    async with AsyncExitStack() as stack:
        pieces = await streaming(agent, client, stack)
        agent.tell(signal.SIGTERM)
        await until(lambda: agent.events("draining"))
        answer = await client.get(f"{agent.admin}/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "draining")
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{agent.traffic}/healthz")
        await until(lambda: control_plane.reports[-1].draining)
        assert not agent.exited
        engine.go.set()
        rest = "".join([piece async for piece in pieces])
    assert "last" in rest
    assert "[DONE]" in rest
    assert await agent.exit_status() == 0
    assert agent.events("drained")[0]["cut_off"] == 0
    if 1 not in control_plane.usage:  # its last report had two seconds: else the next start tells
        await (await run(*managed(control_plane, tmp_path))).listens()
    await until(lambda: 1 in control_plane.usage)
    assert control_plane.usage[1].status == 200


async def test_the_drain_limit_ends_a_stream_with_an_explicit_error(run, engine, client):
    agent = await run("serve", "--worker-urls", engine.url, "--drain-timeout", "0.3")
    await agent.listens()
    await ready(agent, client)
    async with AsyncExitStack() as stack:
        pieces = await streaming(agent, client, stack)
        agent.tell(signal.SIGTERM)
        rest = "".join([piece async for piece in pieces])
    assert "error" in rest
    assert await agent.exit_status() == 0
    assert agent.events("drained")[0]["cut_off"] == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(run, engine, client, second):
    agent = await run("serve", "--worker-urls", engine.url)
    await agent.listens()
    await ready(agent, client)
    async with AsyncExitStack() as stack:
        pieces = await streaming(agent, client, stack)
        agent.tell(signal.SIGTERM)
        await until(lambda: agent.events("draining"))
        agent.tell(second)
        assert await agent.exit_status() == 0
        rest = "".join([piece async for piece in pieces])
    assert "last" not in rest
    assert agent.events("stopped_at_once")
