"""R51 in the agent: requests wait for a replica that is to be started, within limits that hold."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until


async def empty(rig: Rig, **pool: Any) -> None:
    """A pool without a replica, which may get some."""
    await rig.start()
    fields = {"start_wait_s": 20.0, "may_grow_to": 4, "endpoints": ()} | pool
    rig.apply(pools=(replace(rig.table.pools[0], **fields),))


def come(rig: Rig, state: str) -> None:
    rig.set_endpoints(rig.endpoint(0, state=state))


async def test_all_who_wait_are_served_once_the_replica_is_there(rig: Rig) -> None:
    await empty(rig)
    asked = [asyncio.create_task(rig.ask(chat())) for _ in range(20)]
    await until(lambda: rig.proxy.waiting() and rig.proxy.waiting()[0].requests == 20)
    come(rig, "warming")
    (line,) = rig.proxy.waiting()
    assert (line.pool, line.requests) == ("p", 20)
    assert line.oldest_s >= 0
    come(rig, "ready")
    assert {(await reply).status for reply in asked} == {200}
    assert rig.proxy.waiting() == ()
    assert min(r.queue_wait_s for r in rig.records) > 0


async def test_twice(rig: Rig) -> None:
    await empty(rig)
    for _ in range(2):
        asked = asyncio.create_task(rig.ask(chat()))
        await until(rig.proxy.waiting)
        come(rig, "ready")
        assert (await asked).status == 200
        rig.set_endpoints()


async def test_who_waits_longer_than_the_pool_says_gets_503_with_retry_after(rig: Rig) -> None:
    await empty(rig, start_wait_s=0.2)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (503, "queue_timeout")
    assert int(reply.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_gives_its_place_back(rig: Rig) -> None:
    await empty(rig)
    client = await RawClient.open(rig.port)
    client.post(chat())
    await until(rig.proxy.waiting)
    client.reset()
    await until(lambda: not rig.proxy.waiting())
    assert [r.status for r in rig.records] == [499]


async def test_no_more_wait_than_the_replicas_that_may_come_could_queue(rig: Rig) -> None:
    await empty(rig, may_grow_to=1)
    asked = [asyncio.create_task(rig.ask(chat())) for _ in range(10)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert {d.result().status for d in done} == {429}
    come(rig, "ready")
    statuses = sorted([(await reply).status for reply in asked])
    assert statuses == [200] * 8 + [429] * 2


async def test_a_pool_that_starts_none_answers_at_once_as_before(rig: Rig) -> None:
    await empty(rig, start_wait_s=0.0)
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (503, "no_replica")


async def test_replicas_out_of_health_are_not_waited_for(rig: Rig) -> None:
    await empty(rig)
    rig.set_endpoints(rig.endpoint(0, state="ejected"))
    assert (await rig.ask(chat())).error["code"] == "no_replica"
