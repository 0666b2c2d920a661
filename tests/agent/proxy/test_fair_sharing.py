"""Tenants share a full pool's queue fairly, over sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routing_agent import metrics_page, wire
from routing_agent.core.fairness import weighted
from tests.agent.proxy.client import chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.agent.proxy.test_overload_and_drain import Gate, asked

NAMES = ("burst", "calm")


async def two_tenants(rig: Rig, gate: Gate, **settings: Any) -> None:
    await rig.start(gate)
    keys = tuple(wire.ApiKey(id=n, sha256=key_hash(n), tenant=n) for n in NAMES)
    tenants = tuple(wire.Tenant(name=n, priority=5) for n in NAMES)
    rig.configure(
        table={"open_access": False, "api_keys": keys, "tenants": tenants},
        **({"max_concurrency_per_replica": 1, "queue_limit_per_replica": 100} | settings),
    )


async def test_a_burst_of_one_tenant_delays_another_by_one_request(rig: Rig) -> None:
    gate = Gate()
    await two_tenants(rig, gate)
    tasks = await asked(rig, 20, authorization="Bearer burst")
    tasks += await asked(rig, 3, authorization="Bearer calm")
    gate.open()
    await asyncio.gather(*tasks)
    order = [r.tenant for r in rig.records]
    assert order.count("burst") == 20
    assert max(i for i, tenant in enumerate(order) if tenant == "calm") <= 7


async def test_tenants_are_charged_what_their_answers_used(rig: Rig) -> None:
    gate = Gate()
    await two_tenants(rig, gate)
    tasks = await asked(rig, 3, authorization="Bearer burst")
    gate.open()
    await asyncio.gather(*tasks)
    used = sum(weighted(r.prompt_tokens, r.output_tokens) for r in rig.records[1:])
    (pool,) = rig.fleet.pools.values()
    assert pool.shares.counters() == {"burst": used}
    page = metrics_page.render(rig.metrics, rig.fleet, now=0.0)
    assert f'signalbox_fair_share_counter{{pool="{pool.pool.name}",tenant="burst"}}' in page


async def test_nothing_is_counted_while_nobody_waits(rig: Rig) -> None:
    gate = Gate()
    gate.open()
    await two_tenants(rig, gate)
    await rig.ask(chat(), authorization="Bearer burst")
    (pool,) = rig.fleet.pools.values()
    assert len(pool.shares) == 0


@pytest.mark.interpreted
async def test_who_comes_when_room_was_just_made_does_not_overtake_who_waits(rig: Rig) -> None:
    """The place of a finished request goes to the queue, though a newcomer is read first."""
    gate = Gate()
    await two_tenants(rig, gate)
    first = await asked(rig, 1, authorization="Bearer calm", x_request_id="first")
    waiting = await asked(rig, 1, authorization="Bearer calm", x_request_id="waiting")
    late: list[asyncio.Task[Any]] = []
    whole = rig.proxy.room_made

    def made(pool: Any) -> None:
        whole(pool)
        rig.proxy.room_made = whole  # type: ignore[method-assign]
        assert rig.proxy.is_turn_due
        rig.proxy.let_waiting_go_first()
        assert not rig.proxy.is_turn_due

    rig.proxy.room_made = made  # type: ignore[method-assign]
    gate.open(1)
    await first[0]
    late += await asked(rig, 1, authorization="Bearer burst", x_request_id="late")
    await until(lambda: rig.calls == [2])
    gate.open()
    await asyncio.gather(*waiting, *late)
    assert [r.request_id for r in rig.records] == ["first", "waiting", "late"]


async def test_a_priority_of_thousands_of_digits_is_the_lowest(rig: Rig) -> None:
    gate = Gate()
    await two_tenants(rig, gate)
    tasks = await asked(rig, 1, authorization="Bearer calm")
    tasks += await asked(
        rig, 1, authorization="Bearer calm", x_signalbox_priority="9" * 5000, x_request_id="last"
    )
    tasks += await asked(rig, 2, authorization="Bearer calm")
    gate.open()
    assert {r.status for r in await asyncio.gather(*tasks)} == {200}
    assert rig.records[-1].request_id == "last"
