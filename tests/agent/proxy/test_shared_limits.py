"""One limit over two agents, over sockets: agents, lease calls, engines that count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from routing_agent import wire
from routing_agent.control.clock import ControlClock
from routing_agent.control.identity import Identity
from routing_agent.control.leases import KNOWN_TO_ANSWER_S, WAIT_S, LeaseCalls
from routing_agent.control.receiver import Receiver
from routing_agent.control.reporter import Link
from routing_agent.control.signatures import Verifier
from routing_agent.control.snapshot import TableStore
from routing_agent.http_client import HttpClient
from tests.agent.proxy.client import Reply, ask, chat
from tests.agent.proxy.conftest import Rig, key_hash, until
from tests.fakes.control_plane import LEASES, FakeControlPlane
from tests.fakes.engine import Call, completion

KEY = {"authorization": "Bearer sk-1"}


class Counting:
    """An engine's script that holds every request until told, and counts how many it has."""

    def __init__(self) -> None:
        self.running = self.peak = self.served = 0
        self.open = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        self.running += 1
        self.served += 1
        self.peak = max(self.peak, self.running)
        await self.open.wait()
        self.running -= 1
        await call.answer(200, completion())


class Two:
    """Two agents, their control plane, and one count over all their engines."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.plane = FakeControlPlane()
        self.engine = Counting()
        self.rigs = [Rig(), Rig()]
        self.leases: list[LeaseCalls] = []
        self.client = HttpClient()
        self.tasks: list[asyncio.Task[None]] = []
        self.reported_at: float | None = None

    async def start(self, **limits: Any) -> Two:
        await self.plane.start()
        self.plane.limits["acme"] = wire.TenantLimits(**limits, leased=True)
        for i, rig in enumerate(self.rigs):
            await rig.start(self.engine)
            self.configure(rig)
            self._connect(i, rig)
        return self

    def configure(self, rig: Rig) -> None:
        tenants = (
            wire.Tenant(name="acme", limits=self.plane.limits["acme"]),
            wire.Tenant(name="free"),
        )
        keys = (
            wire.ApiKey(id="k1", sha256=key_hash("sk-1"), tenant="acme"),
            wire.ApiKey(id="k2", sha256=key_hash("sk-2"), tenant="free"),
        )
        rig.configure(table={"open_access": False, "tenants": tenants, "api_keys": keys})

    def _connect(self, i: int, rig: Rig) -> None:
        token, name = f"token-{i}", f"agent-{i}"
        self.plane.agents[token] = name
        clock = ControlClock()
        link = Link(
            control_plane=self.plane.url,
            identity=Identity(
                agent=name,
                agent_token=token,
                public_key=self.plane.public_key,
                lineage=self.plane.lineage,
            ),
            client=self.client,
            clock=clock,
            verifier=Verifier(self.plane.public_key, clock),
            receiver=Receiver(TableStore(self.folder / f"{i}.json"), lambda _table: None),
        )
        leases = LeaseCalls(link, rig.fleet, start=1, reported_at=lambda: self.reported_at)
        rig.proxy.wait_for_lease = leases.wait
        self.leases.append(leases)
        self.tasks.append(asyncio.create_task(leases.run()))

    async def burst(self, *counts: int, body: Any = None) -> list[Reply]:
        """Send so many requests at once through each agent; those that run are held."""
        asked = [
            asyncio.create_task(ask(rig.port, body or chat(), **KEY))
            for rig, count in zip(self.rigs, counts, strict=True)
            for _ in range(count)
        ]
        return [*await self._settled(asked)]

    async def _settled(self, asked: list[asyncio.Task[Reply]]) -> list[Reply]:
        """Let the engines answer once every request has been refused or has reached one."""
        before = self.engine.served - self.engine.running
        await until(
            lambda: sum(t.done() for t in asked) + self.engine.served - before == len(asked)
        )
        self.engine.open.set()
        replies = await asyncio.gather(*asked)
        self.engine.open.clear()
        return replies

    async def all_is_back(self) -> None:
        await until(
            lambda: (
                not any(
                    h.slots
                    for ledger in self.plane.ledgers.values()
                    for h in ledger.holdings.values()
                )
            )
        )

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for rig in self.rigs:
            await rig.stop()
        await self.client.close()
        await self.plane.stop()


@pytest.fixture
async def two(tmp_path: Any) -> AsyncIterator[Two]:
    made = Two(tmp_path)
    yield made
    made.engine.open.set()
    await made.stop()


def statuses(replies: list[Reply]) -> dict[int, int]:
    found = [reply.status for reply in replies]
    return {status: found.count(status) for status in sorted(set(found))}


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
async def test_fifty_at_once_fill_the_limit_through_one_agent_or_two(two: Two, limit: int) -> None:
    """R11 over two agents: through one, through both, all through the other, and again."""
    await two.start(concurrency=limit)
    for counts in ((50, 0), (25, 25), (0, 50), (49, 1)):
        replies = await two.burst(*counts)
        assert statuses(replies) == {200: limit, 429: 50 - limit}, counts
        assert two.engine.peak == limit
        refused = next(r for r in replies if r.status == 429)
        assert refused.error["code"] == "rate_limit_exceeded"
        assert refused.error["limit"] == "concurrency"
        assert f"of {limit} " in refused.error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        await two.all_is_back()


async def test_a_token_budget_for_three_admits_three_over_two_agents(two: Two) -> None:
    await two.start(tokens_per_minute=310)
    body = chat(max_tokens=99)
    asked = [asyncio.create_task(ask(rig.port, body, **KEY)) for rig in two.rigs for _ in range(25)]
    await until(lambda: sum(t.done() for t in asked) + two.engine.served == 50)
    assert two.engine.served == 3
    two.engine.open.set()
    replies = list(await asyncio.gather(*asked))
    assert statuses(replies) == {200: 3, 429: 47}
    refused = next(r for r in replies if r.status == 429)
    assert refused.error["limit"] == "tokens_per_minute"


async def test_requests_a_minute_hold_over_two_agents(two: Two) -> None:
    await two.start(requests_per_minute=7)
    replies = await two.burst(25, 25)
    assert statuses(replies) == {200: 7, 429: 43}
    refused = next(r for r in replies if r.status == 429)
    assert refused.error["limit"] == "requests_per_minute"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


async def test_a_tenant_without_limits_makes_no_lease_call(two: Two) -> None:
    await two.start(concurrency=5)
    two.engine.open.set()
    reply = await ask(two.rigs[0].port, chat(), authorization="Bearer sk-2")
    assert reply.status == 200
    assert not two.plane.calls[LEASES]


async def test_a_steady_client_needs_few_lease_calls(two: Two) -> None:
    await two.start(concurrency=5)
    two.engine.open.set()
    for _ in range(100):
        assert (await ask(two.rigs[0].port, chat(), **KEY)).status == 200
    assert two.plane.calls[LEASES] <= 30, "not one a request"


async def test_a_lost_answer_is_asked_for_again_and_booked_once(two: Two) -> None:
    await two.start(concurrency=5)
    two.plane.lose_lease_answers = 1
    replies = await two.burst(5, 0)
    assert statuses(replies).get(429, 0) >= 1, "the one that waited for that answer"
    await until(lambda: len(two.plane.lease_calls) >= 2)
    first, second = two.plane.lease_calls[:2]
    assert (first.start, first.serial) == (second.start, second.serial)
    await two.all_is_back()
    assert statuses(await two.burst(50, 0)) == {200: 5, 429: 45}


async def test_a_control_plane_that_hangs_delays_a_request_by_a_moment_only(two: Two) -> None:
    await two.start(concurrency=5)
    two.plane.holds_leases = asyncio.Event()
    assert statuses(await two.burst(20, 0)) == {429: 20}
    two.plane.holds_leases.set()
    await until(lambda: not two.leases[0].last_error and two.leases[0]._pending is None)
    await two.all_is_back()
    assert statuses(await two.burst(0, 50)) == {200: 5, 429: 45}


async def test_while_the_control_plane_is_away_the_last_share_is_kept(two: Two) -> None:
    await two.start(concurrency=5)
    held = [asyncio.create_task(ask(two.rigs[0].port, chat(), **KEY)) for _ in range(3)]
    await until(lambda: two.engine.running == 3)
    two.plane.status = 503
    two.engine.open.set()
    assert {r.status for r in await asyncio.gather(*held)} == {200}
    assert (await ask(two.rigs[0].port, chat(), **KEY)).status == 200
    refused = await ask(two.rigs[1].port, chat(), **KEY)
    assert refused.status == 429
    two.plane.status = None
    await until(lambda: not two.leases[0].last_error and not two.leases[1].last_error)
    await two.all_is_back()


@pytest.mark.parametrize(("rule", "status"), [("open", 200), ("closed", 429)])
async def test_after_the_last_share_the_declared_rule_holds(
    two: Two, rule: str, status: int
) -> None:
    await two.start(concurrency=2, when_unreachable=rule)
    two.engine.open.set()
    two.plane.status = 503
    two.reported_at = time.monotonic() - wire.LEASE_S
    gate = two.rigs[0].fleet.gate(two.rigs[0].fleet.table.tenants["acme"], time.monotonic())
    await until(lambda: gate.share.gone_at < time.monotonic())
    reply = await ask(two.rigs[0].port, chat(), **KEY)
    assert reply.status == status
    if status == 429:
        assert reply.error["limit"] == "concurrency"
        assert "out of reach" in reply.error["message"]
    two.plane.status, two.reported_at = None, time.monotonic()
    await until(lambda: gate.share.gone_at > time.monotonic())
    assert (await ask(two.rigs[0].port, chat(), **KEY)).status == 200


async def test_an_agent_that_stops_gives_everything_back(two: Two) -> None:
    await two.start(concurrency=5)
    await two.burst(5, 0)
    two.tasks[0].cancel()
    await two.leases[0].give_all_back()
    assert two.plane.ledgers["acme"].holdings["agent-0"].slots == 0


async def test_a_client_that_leaves_while_it_waits_takes_no_place(two: Two) -> None:
    await two.start(concurrency=1)
    two.plane.holds_leases = asyncio.Event()
    asked = asyncio.create_task(ask(two.rigs[0].port, chat(), **KEY))
    await until(lambda: two.plane.lease_calls)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    two.plane.holds_leases.set()
    await two.all_is_back()
    assert two.engine.served == 0


async def test_a_late_answer_is_waited_for_while_the_control_plane_is_known_to_answer(
    two: Two,
) -> None:
    """A busy machine is no reason to refuse what the limit allows; one that is gone is."""
    await two.start(concurrency=2)
    counts = two.leases[0].counts
    two.plane.holds_leases = asyncio.Event()
    two.reported_at = sent_at = time.monotonic()
    asked = asyncio.create_task(two.burst(1, 0))
    await until(lambda: time.monotonic() - sent_at > 2 * WAIT_S)
    assert counts.waits["too_late"] == 0
    two.plane.holds_leases.set()
    assert [r.status for r in await asked] == [200]
    assert (counts.waits["answered"], counts.calls["answered"]) == (1, 1)
    await two.all_is_back()
    two.plane.holds_leases = asyncio.Event()
    two.reported_at = two.leases[0]._answered_at = sent_at - 2 * KNOWN_TO_ANSWER_S
    assert statuses(await two.burst(3, 0)) == {429: 3}
    assert counts.waits["too_late"] == 3
    two.plane.holds_leases.set()
