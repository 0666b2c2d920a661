"""Time in which our own loop did not look is held against nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from routing_agent.http_client import HttpClient, Response, TimedOut
from tests.agent.proxy.client import chat
from tests.agent.proxy.conftest import Rig
from tests.fakes.engine import hanging, obliging

# Who counts the time of all turns finds these limits passed after one or two turns of the loop; who
# counts a tick a turn, after four and seven. A phase of a request needs two or three, a probe five.
BLOCKED_S = 0.25
LIMIT_S = 0.4
PROBE_LIMIT_S = 0.7
LIMITS = {"connect_limit_s": LIMIT_S, "ttft_limit_s": LIMIT_S, "stall_limit_s": LIMIT_S}


@asynccontextmanager
async def busy_loop() -> AsyncIterator[None]:
    """Hold the loop up at every turn, as a thousand large requests or a starved CPU do."""

    async def hold_up() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the very thing that is tested
            await asyncio.sleep(0)

    task = asyncio.create_task(hold_up())
    yield
    task.cancel()


async def test_a_loop_that_is_held_up_blames_no_engine(rig: Rig) -> None:
    """Connections that are made and answers that come while we do not look are in time."""
    await rig.start(obliging(), obliging())
    rig.configure(max_retries=0, **LIMITS)
    async with busy_loop():
        replies = await asyncio.gather(*(rig.ask(chat(stream=i % 2 == 0)) for i in range(4)))
    assert [r.status for r in replies] == [200] * 4
    assert sum(rig.calls) == 4
    assert [rig.replica(i).errors_total for i in range(2)] == [0, 0]


async def test_a_loop_that_is_held_up_still_notices_an_engine_that_hangs(rig: Rig) -> None:
    """It takes longer, but not for ever."""
    await rig.start(hanging)
    rig.configure(**LIMITS)
    async with busy_loop():
        reply = await rig.ask(chat(stream=True))
    assert (reply.status, reply.error["code"]) == (504, "engine_too_slow")


async def test_probes_are_not_missed_by_a_loop_that_is_held_up(rig: Rig) -> None:
    """An answer that lay in the socket while we did not look is an answer."""
    await rig.start(obliging())
    client = HttpClient(attention=rig.proxy.attention)

    async def probe() -> Response:
        url = f"{rig.engines[0].url}/health"
        return await client.call("POST", url, body=b"{}", timeout_s=PROBE_LIMIT_S)

    async with busy_loop():
        assert (await probe()).ok
        rig.engines[0].script = hanging
        with pytest.raises(TimedOut):
            await probe()
    await client.close()
