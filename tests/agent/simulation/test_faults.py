"""Fault switches: what each does to clients, and that they can be turned off again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import httpx
import pytest

from routing_agent.simulation.faults import Faults, InvalidFaults, Shares, merged
from tests.agent.simulation.conftest import RunningEngine, events
from tests.agent.waiting import until


async def test_fail_answers_its_share_of_requests_with_the_status(engine: RunningEngine) -> None:
    await engine.switch(fail={"status": 503, "ratio": 0.5})
    statuses = [(await engine.chat(max_tokens=1)).status_code for _ in range(6)]
    assert statuses == [200, 503, 200, 503, 200, 503]


async def test_hang_accepts_and_never_answers_but_health_is_fine(engine: RunningEngine) -> None:
    await engine.switch(hang={})
    with pytest.raises(httpx.ReadTimeout):
        await engine.client.post("/v1/chat/completions", json={}, timeout=0.2)
    assert (await engine.client.get("/health")).status_code == 200


async def test_hang_in_mid_stream_stops_after_so_many_tokens(engine: RunningEngine) -> None:
    await engine.switch(hang={"after_tokens": 3})
    reader, writer = await engine.open_stream()
    for _ in range(4):  # the role and three tokens
        await reader.readuntil(b"data:")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"data:"), 0.3)
    writer.close()
    await until(lambda: engine.server.engine.scheduler.running == 0)


async def test_a_reset_breaks_the_stream_off(engine: RunningEngine) -> None:
    await engine.switch(crash={"how": "reset", "after_tokens": 3})
    reader, _ = await engine.open_stream()
    with pytest.raises(ConnectionResetError):
        await reader.readuntil(b"[DONE]")
    await until(lambda: engine.server.engine.scheduler.running == 0)


async def test_a_reset_before_the_answer(engine: RunningEngine) -> None:
    await engine.switch(crash={"how": "reset"})
    with pytest.raises(httpx.ReadError):
        await engine.chat()


async def test_unhealthy_answers_503_to_probes_and_still_serves(engine: RunningEngine) -> None:
    await engine.switch(unhealthy=True)
    assert (await engine.client.get("/health")).status_code == 503
    assert (await engine.chat(max_tokens=1)).status_code == 200


async def test_asleep_looks_healthy_and_idle_and_works_on_when_woken(engine: RunningEngine) -> None:
    await engine.switch(asleep=True)
    reader, _ = await engine.open_stream(max_tokens=2)
    assert (await engine.client.get("/health")).status_code == 200
    samples = await engine.metrics()
    assert await engine.metric("num_requests_waiting") == 0
    assert samples['vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"}'] == 0
    assert engine.server.engine.jobs == 1
    await engine.client.delete("/simulate/faults")
    assert b"[DONE]" in await reader.readuntil(b"[DONE]")


async def test_slow_stretches_every_step(engine: RunningEngine) -> None:
    await engine.switch(slow=30)
    await engine.chat(max_tokens=3, ignore_eos=True)
    samples = await engine.metrics()
    between = 'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"}'
    assert samples[between] == pytest.approx(2 * 0.0012 * 30, rel=0.05)


async def test_switches_add_up_and_are_shown_and_cleared(engine: RunningEngine) -> None:
    await engine.switch(fail={"status": 500})
    await engine.switch(unhealthy=True)
    assert (await engine.client.get("/simulate/faults")).json() == {
        "fail": {"status": 500, "ratio": 1.0},
        "unhealthy": True,
    }
    await engine.switch(fail=None)
    assert (await engine.client.get("/simulate/faults")).json() == {"unhealthy": True}
    assert (await engine.client.delete("/simulate/faults")).json() == {}
    assert (await engine.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"{", b'{"fial": {}}', b'{"fail": {"status": 200}}', b'{"slow": 0}',
     b'{"hang": {"after_tokens": 0}}', b'{"crash": "now"}', b'{"fail": {"ratio": 2}}'],
)  # fmt: skip
async def test_wrong_switches_are_refused_and_change_nothing(
    engine: RunningEngine, body: bytes
) -> None:
    await engine.switch(unhealthy=True)
    answer = await engine.client.post("/simulate/faults", content=body)
    assert answer.status_code == 400
    assert "Known switches" in answer.json()["error"]["message"]
    assert (await engine.client.get("/simulate/faults")).json() == {"unhealthy": True}


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1 / 3, 0.5, 1.0])
def test_a_share_is_exact(ratio: float) -> None:
    shares = Shares()
    hits = sum(shares.picks("fail", ratio) for _ in range(300))
    assert hits == pytest.approx(300 * ratio, abs=1)


def test_null_turns_a_plain_switch_off() -> None:
    on = merged(Faults(), b'{"slow": 5, "asleep": true}')
    assert merged(on, b'{"slow": null, "asleep": null}') == Faults()
    with pytest.raises(InvalidFaults, match="no switch given"):
        merged(on, b"{}")


async def start_process(*options: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "routing_agent", "simulate-engine", "--port", "0", "--model", "m",
        *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return process, "http://" + line.split("http://")[1].split('"')[0].split()[0]


async def test_crash_ends_the_process_in_mid_stream_or_at_once() -> None:
    process, url = await start_process("--faults", '{"crash": {"after_tokens": 2}}')
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/chat/completions", json=body)
    assert await process.wait() == 1
    process, url = await start_process()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        with contextlib.suppress(httpx.TransportError):  # whether its answer gets out is chance
            await client.post("/simulate/faults", json={"crash": {}})
    assert await process.wait() == 1


async def test_sigterm_ends_the_process_well_with_running_work_finished() -> None:
    process, url = await start_process("--speed", "5")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            process.send_signal(signal.SIGTERM)
            text = (await answer.aread()).decode()
    assert events(text)[-1]["choices"][0]["finish_reason"] == "stop"
    assert await process.wait() == 0


async def test_impossible_options_are_refused_with_the_reason() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "routing_agent", "simulate-engine", "--port", "0", "--model", "m",
        "--kv-blocks", "0", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"kv_blocks is 0; it must be above 0" in errors
