"""Requests that wait in the agent while every engine has prompts enough to compute."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from routing_agent import wire
from routing_agent.metrics_page import render
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.agent.proxy.test_overload_and_drain import Gate

NAMES = ("burst", "calm")


def prompt(number: int) -> dict[str, Any]:
    """A prompt of about a thousand tokens that shares nothing with another."""
    text = f"{number} " * 2000
    return chat(messages=[{"role": "user", "content": text}], stream=True)


async def held_back(rig: Rig, *gates: Gate, **settings: Any) -> None:
    await rig.start(*gates)
    rig.configure(
        table={
            "open_access": False,
            "api_keys": tuple(wire.ApiKey(id=n, sha256=key_hash(n), tenant=n) for n in NAMES),
            "tenants": tuple(wire.Tenant(name=n) for n in NAMES),
        },
        **({"policy": "expected_ttft", "bind_ahead_s": 0.001} | settings),
    )


def send(rig: Rig, tenant: str, *numbers: int) -> list[asyncio.Task[Any]]:
    return [
        asyncio.create_task(rig.ask(prompt(n), authorization=f"Bearer {tenant}")) for n in numbers
    ]


async def fill(rig: Rig) -> list[asyncio.Task[Any]]:
    """Give each of two engines a prompt to compute."""
    tasks = send(rig, "burst", 1)
    await until(lambda: sum(rig.calls) == 1)
    tasks += send(rig, "burst", 2)
    await until(lambda: rig.calls == [1, 1])
    return tasks


def waiting(rig: Rig) -> int:
    return sum(one.requests for one in rig.proxy.waiting())


async def test_requests_wait_here_by_fair_shares_until_an_engine_has_less_to_do(rig: Rig) -> None:
    gates = Gate(), Gate()
    await held_back(rig, *gates)
    tasks = await fill(rig)
    for number in range(3, 9):
        tasks += send(rig, "burst", number)
        await until(lambda n=number: waiting(rig) == n - 2)  # type: ignore[misc]
    tasks += send(rig, "calm", 9)
    await until(lambda: waiting(rig) == 7)
    leaver = await RawClient.open(rig.port)
    leaver.post(prompt(10), authorization="Bearer calm")
    await until(lambda: waiting(rig) == 8)
    leaver.close()
    await until(lambda: waiting(rig) == 7)
    assert rig.calls == [1, 1]
    for gate in gates:
        gate.open()
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
    order = [record.tenant for record in rig.records if record.status == 200]
    assert order.index("calm") <= 6  # it came last, and overtook most of the burst
    assert rig.calls[0] + rig.calls[1] == 9
    page = render(rig.proxy.metrics, rig.fleet, now=time.monotonic())
    assert 'signalbox_held_back_total{pool="p"} 8' in page
    assert not any(r.prefill.queued_tokens for r in rig.fleet.replicas.values())


async def test_who_finds_no_place_to_wait_is_sent_and_who_waits_too_long_is_told(rig: Rig) -> None:
    gates = Gate(), Gate()
    await held_back(rig, *gates, queue_limit_per_replica=1, queue_deadline_s=0.3)
    tasks = await fill(rig)
    waits = send(rig, "calm", 3, 4)
    await until(lambda: waiting(rig) == 2)
    tasks += send(rig, "calm", 5)  # nothing is turned away for being held back
    await until(lambda: sum(rig.calls) == 3)
    told = await asyncio.gather(*waits)
    assert {(reply.status, reply.error["code"]) for reply in told} == {(503, "queue_timeout")}
    for gate in gates:
        gate.open()
    assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
